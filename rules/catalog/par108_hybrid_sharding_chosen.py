"""Hybrid sharding is chosen: shards inside a group of fast links, copies across the slow ones.

## What it finds
A plan for hybrid sharding, with what full sharding would take and what the copies cost in memory.

## Why it matters
Full sharding gathers all weights over the slowest link; hybrid sharding sends only reduced gradients over it. On 64
H100 that gave 392K instead of 293K tokens/s for 5.6 GB more per GPU. On a fast fabric it may not win: a 7B on 2 x 8
A100 with EFA was slower overall. So a small difference is decided by measuring both.

## What to do
Where the two are within 10 %, run both for some steps with `advisor apply`. Keep gradients inside the group between
micro-batches with `set_requires_all_reduce(last)`, which needs no memory.

## Source
https://github.com/mlc-ai/pith-train/pull/40; https://github.com/huggingface/blog/issues/1649;
https://github.com/NVIDIA/cosmos-framework/issues/161
"""

from collections.abc import Iterator

from advisor.rules.alternatives import fastest, rivals
from advisor.rules.format import memory, percent, seconds
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

CLEAR = 1.1  # times the step time, above which the models order strategies


@rule("PAR108", "hybrid-sharding-chosen")
def check(case: Case) -> Iterator[Finding]:
    plan, predicted = case.plan, case.predicted
    full = fastest(rivals(case, "fsdp"))
    if plan is None or predicted is None or plan.strategy != "hsdp" or full is None:
        return
    mine, other = predicted.memory, full.predicted.memory
    times = full.predicted.step_seconds / predicted.step_seconds
    clear = times >= CLEAR
    verdict = "" if clear else "; such a difference only a measurement decides"
    deferred = "; call model.set_requires_all_reduce(last) before each micro-batch" if plan.accumulation > 1 else ""
    both = "run both for some steps: plans with --only hsdp and --only fsdp, each with advisor apply"
    yield Finding(
        code="PAR108",
        name="hybrid-sharding-chosen",
        severity="info",
        message=(
            f"shards over {plan.shard_size} ranks and {plan.ranks // plan.shard_size} copies: "
            f"{seconds(predicted.step_seconds)} per step and {memory(mine.total)} per rank "
            f"({percent(1 - mine.total / mine.available)} free); full sharding {seconds(full.predicted.step_seconds)} "
            f"({times:.2f}x) and {memory(other.total)}{verdict}"
        ),
        facts={
            "step_seconds": predicted.step_seconds,
            "full_step_seconds": full.predicted.step_seconds,
            "memory": mine.total,
            "full_memory": other.total,
            "available": mine.available,
            "shard_size": plan.shard_size,
        },
        remedy=(f"none needed{deferred}" if clear else f"{both}{deferred}"),
    )

"""Hybrid sharding is no gain here: it is slower than full sharding, or its copies do not fit.

## What it finds
A plan for full sharding over several hosts or islands, where hybrid sharding was priced and lost.

## Why it matters
Hybrid sharding is the usual advice for several hosts, yet each copy takes memory: then micro-batches shrink or
activations are recomputed, and what it saves on the network is lost again. Where copies do not fit it is no option.

## What to do
Nothing: the plan shards over all GPUs. A leaner optimizer can make the copies fit.

## Source
https://github.com/huggingface/blog/issues/1649; the candidates of the same report
"""

from collections.abc import Iterator

from advisor.rules.alternatives import fastest, rivals, smallest
from advisor.rules.format import memory, seconds
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

CLEAR = 1.1  # times the step time, above which the models order strategies


@rule("PAR109", "hybrid-sharding-loses")
def check(case: Case) -> Iterator[Finding]:
    plan, predicted = case.plan, case.predicted
    hybrid = rivals(case, "hsdp")
    least, best = smallest(hybrid), fastest(hybrid)
    if plan is None or predicted is None or plan.strategy != "fsdp" or least is None:
        return
    facts: dict[str, float] = {"step_seconds": predicted.step_seconds}
    if best is None:
        needed, size = least.predicted.memory, least.plan.shard_size
        what = f"needs at least {memory(needed.total)} per rank with copies over {size} ranks, "
        what += f"{memory(needed.available)} are available"
        facts |= {"hybrid_memory": needed.total, "available": needed.available}
    elif best.predicted.step_seconds >= CLEAR * predicted.step_seconds:
        other = best.predicted
        what = f"takes {seconds(other.step_seconds)} per step ({memory(other.memory.total)} per rank), "
        what += f"full sharding {seconds(predicted.step_seconds)} ({memory(predicted.memory.total)})"
        facts |= {"hybrid_step_seconds": other.step_seconds, "hybrid_memory": other.memory.total}
    else:
        return
    yield Finding(
        code="PAR109",
        name="hybrid-sharding-loses",
        severity="info",
        message=f"hybrid sharding {what}",
        facts=facts,
        remedy="none needed; --optimizer adamw-8bit makes copies smaller",
    )

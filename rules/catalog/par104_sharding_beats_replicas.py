"""Sharding is faster than DDP here, although whole copies would fit.

## What it finds
A plan that shards where DDP on the same GPUs fits and takes at least a quarter longer.

## Why it matters
Copies leave little memory for activations: DDP then runs with smaller micro-batches or recomputes activations, and its
optimizer works on all parameters on each rank. Measured on two H200 through host memory, a step of a 1.4B GPT: DDP
278 ms, FSDP that keeps its weights and reduces in bf16 192 ms.

## What to do
Nothing: the plan shards. If the script must stay with DDP, type `--only ddp` and see what that costs.

## Source
docs/models.md for the measurements and both timelines
"""

from collections.abc import Iterator

from advisor.rules.alternatives import SLOWER, fastest, rivals
from advisor.rules.format import memory, seconds
from advisor.rules.plan import Candidate, Finding
from advisor.rules.rule import Case, rule

RECOMPUTED = {"none": "", "selective": ", every second block recomputed", "full": ", recomputed activations"}


@rule("PAR104", "sharding-beats-replicas")
def check(case: Case) -> Iterator[Finding]:
    plan, predicted = case.plan, case.predicted
    if plan is None or predicted is None or plan.strategy not in ("fsdp", "hsdp"):
        return
    replicated = fastest(rivals(case, "ddp"))
    if replicated is None or replicated.predicted.step_seconds < SLOWER * predicted.step_seconds:
        return
    other = replicated.predicted
    yield Finding(
        code="PAR104",
        name="sharding-beats-replicas",
        severity="info",
        message=(
            f"{plan.strategy.upper()} takes {seconds(predicted.step_seconds)} per step "
            f"({_how(Candidate(plan=plan, predicted=predicted))}), DDP {seconds(other.step_seconds)} "
            f"({_how(replicated)})"
        ),
        facts={"step_seconds": predicted.step_seconds, "replicated_step_seconds": other.step_seconds},
        remedy="none needed; --only ddp plans for whole copies all the same",
    )


def _how(candidate: Candidate) -> str:
    plan = candidate.plan
    recomputed = RECOMPUTED[plan.activation_checkpointing]
    size = f"{plan.micro_batch}x{plan.accumulation} samples{recomputed}"
    return f"{size}, {memory(candidate.predicted.memory.total)} per rank"

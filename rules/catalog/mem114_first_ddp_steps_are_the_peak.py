"""DDP needs more memory in its second step than later.

## What it finds
A DDP plan that uses more than 85 % of what is available, of which one set of gradient buckets is 5 % or more.

## Why it matters
DDP starts with buckets in the order of the parameters, sees in the first step in which order gradients become ready,
and builds new buckets then, while the old ones are still there: 8 bytes per parameter instead of 4. A run that gets
through its second step has seen its peak; one that fails there does not leak.

## What to do
Judge memory from the third step on, and the fit by the second. If the second step fails, take FSDP or a smaller
micro-batch.

## Source
Measured, docs/models.md, "Memory"; torch/csrc/distributed/c10d/reducer.cpp, rebuild_buckets
"""

from collections.abc import Iterator

from advisor.rules.format import count, memory
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

USED = 0.85  # of what is available
SHARE = 0.05  # of what is available, that a set of buckets takes


@rule("MEM114", "first-ddp-steps-are-the-peak")
def check(case: Case) -> Iterator[Finding]:
    job, plan, predicted = case.job, case.plan, case.predicted
    if job is None or plan is None or predicted is None or plan.strategy != "ddp" or plan.launcher.device == "cpu":
        return
    needed = predicted.memory
    buckets = 4 * job.trainable_params
    if needed.total < USED * needed.available or buckets < SHARE * needed.available:
        return
    yield Finding(
        code="MEM114",
        name="first-ddp-steps-are-the-peak",
        severity="info",
        message=(
            f"in the second step DDP holds its buckets twice, 2 x 4 B x {count(job.trainable_params)} = "
            f"{memory(2 * buckets)} of the {memory(needed.total)} per rank; later steps need {memory(buckets)} less"
        ),
        facts={"buckets": buckets, "total": needed.total, "available": needed.available},
        remedy="none needed; measure from the third step on, and if the second fails use a smaller --micro-batch",
    )

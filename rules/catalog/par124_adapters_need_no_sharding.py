"""Only adapters are trained: full sharding would gather the frozen base for nothing.

## What it finds
A job that trains less than 10 % of its parameters, where DDP fits and full sharding on the same GPUs takes at least a
quarter longer. A warning where the script shards by itself.

## Why it matters
DDP reduces the gradients of the adapters, some megabytes. FSDP gathers the whole frozen base in the forward and in the
backward pass of each micro-batch: on slow links steps of 70 times the length were seen.

## What to do
Use DDP as long as the base fits on each GPU, quantised if need be; shard only what does not fit.

## Source
LoRA, https://arxiv.org/abs/2106.09685; the candidates of the same report
"""

from collections.abc import Iterator

from advisor.rules.alternatives import ADAPTERS, SLOWER, fastest, rivals
from advisor.rules.format import count, memory, seconds
from advisor.rules.memory import gather_bytes, reduce_bytes
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("PAR124", "adapters-need-no-sharding")
def check(case: Case) -> Iterator[Finding]:
    job = case.job
    if job is None or job.trainable_params >= ADAPTERS * job.params:
        return
    whole, sharded = fastest(rivals(case, "ddp")), fastest(rivals(case, "fsdp"))
    if whole is None or sharded is None:
        return
    mine, theirs = whole.predicted.step_seconds, sharded.predicted.step_seconds
    if theirs < SLOWER * mine:
        return
    shards = case.script is not None and case.script.kind == "fsdp"
    sent, gathered = reduce_bytes(whole.plan) * job.trainable_params, gather_bytes(sharded.plan) * job.params
    yield Finding(
        code="PAR124",
        name="adapters-need-no-sharding",
        severity="warning" if shards else "info",
        message=(
            f"{count(job.trainable_params)} of {count(job.params)} parameters are trained: DDP sends {memory(sent)} "
            f"per step and takes {seconds(mine)}, full sharding gathers {memory(gathered)} in each pass and takes "
            f"{seconds(theirs)} ({theirs / mine:.2g}x)"
        ),
        facts={"step_seconds": mine, "sharded_step_seconds": theirs, "sent": sent, "gathered": gathered},
        remedy="wrap with DistributedDataParallel instead of fully_shard" if shards else "none needed: keep DDP",
        file=case.script.path if case.script and shards else None,
    )

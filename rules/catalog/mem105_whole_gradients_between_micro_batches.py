"""With gradient accumulation under FSDP, gradients are whole between micro-batches, or would be too large so.

## What it finds
A sharded plan with several micro-batches for each optimizer step: one that reduces gradients only in the last, at a
tenth of the GPU's memory or more; or one that reduces in each, where whole gradients do not fit or leave less than a
tenth.

## Why it matters
FSDP can leave out the reduce-scatter in all micro-batches but the last (`no_sync`). It then keeps each gradient whole
until then: that saves traffic, and costs the memory that sharding had saved.

## What to do
Where gradients are reduced each time, leave `no_sync` out. Where they are not and memory runs out, reduce each time.

## Source
https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html, set_requires_gradient_sync;
https://github.com/allenai/open-instruct/issues/746, https://github.com/huggingface/accelerate/issues/2531
"""

from collections.abc import Iterator

from advisor.rules.format import memory
from advisor.rules.memory import reduce_bytes
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

SHARE = 0.1  # of what is available, from which whole gradients are worth a word
FULL = 0.9  # of what is available, that whole gradients would fill


@rule("MEM105", "whole-gradients-between-micro-batches")
def check(case: Case) -> Iterator[Finding]:
    job, plan, predicted = case.job, case.plan, case.predicted
    if job is None or plan is None or predicted is None or plan.strategy not in ("fsdp", "hsdp"):
        return
    needed = predicted.memory
    whole = reduce_bytes(plan) * job.trainable_params
    sharded = int(4 * job.trainable_params / plan.shard_size)
    spared = plan.accumulation - 1
    if spared < 1 or plan.cpu_offload or whole < SHARE * needed.available:
        return
    traffic = f"{spared} x {memory(whole)}"
    if not plan.sync_each_micro_batch:
        message = (
            f"gradients stay whole over {plan.accumulation} micro-batches: {memory(whole)} per rank instead of "
            f"{memory(sharded)}; that spares reducing {traffic} per step"
        )
        remedy = "none needed while it fits; else reduce in each micro-batch: set_requires_gradient_sync(True)"
    elif (late := needed.total - needed.gradients + whole) > FULL * needed.available:
        fit = "do not fit" if late > needed.available else "just fit"
        message = (
            f"gradients are reduced in each of {plan.accumulation} micro-batches: whole ones (no_sync) would take "
            f"{memory(whole)} per rank instead of {memory(sharded)}, and {fit}: {memory(late)} in all, "
            f"{memory(needed.available)} available; the price is reducing {traffic} more per step"
        )
        remedy = "leave no_sync() out of the script, and set_requires_gradient_sync(False) as well"
    else:
        return
    yield Finding(
        code="MEM105",
        name="whole-gradients-between-micro-batches",
        severity="info",
        message=message,
        facts={"whole": whole, "sharded": sharded, "reduced_more": spared * whole, "available": needed.available},
        remedy=remedy,
    )

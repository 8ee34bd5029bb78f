"""The micro-batch is small, most of the GPU's memory is unused, and a larger one would be faster.

## What it finds
A plan that uses less than 40 % of the memory available, with a --micro-batch that was given and is smaller than the
batch of a rank, where the largest one that fits takes at least 5 % less time for the same global batch.

## Why it matters
Small micro-batches start more kernels, fill the GPU less and, when sharded, gather the weights more often.

## What to do
Leave --micro-batch out, so that it is chosen, or give the one that the finding names, here and in the script. The
global batch and the training stay the same.

## Source
The step times of the finding, by the same model as the plan's
"""

from collections.abc import Iterator

from msgspec.structs import replace

from advisor.rules.cost import Costs
from advisor.rules.format import memory, percent, seconds
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.strategies import MAX_MICRO_BATCH

UNUSED = 0.4  # of what is available
FASTER = 0.95


@rule("MEM118", "micro-batch-leaves-memory-unused")
def check(case: Case) -> Iterator[Finding]:
    job, plan, predicted = case.job, case.plan, case.predicted
    if job is None or plan is None or predicted is None or job.micro_batch is None or plan.accumulation == 1:
        return
    needed = predicted.memory
    if plan.launcher.device == "cpu" or needed.total > UNUSED * needed.available:
        return
    share = plan.samples * plan.accumulation
    costs = Costs(job, case.machine)
    for size in range(min(share, MAX_MICRO_BATCH), plan.samples, -1):
        if share % size:
            continue
        larger = replace(plan, micro_batch=size, accumulation=share // size)
        then = costs.memory(larger)
        if not then.fits:
            continue
        step = costs.predict(larger, then).step_seconds
        if step <= FASTER * predicted.step_seconds:
            yield Finding(
                code="MEM118",
                name="micro-batch-leaves-memory-unused",
                severity="info",
                message=(
                    f"micro-batches of {plan.samples} use {memory(needed.total)} of {memory(needed.available)}, "
                    f"{percent(needed.total / needed.available)}; with {size} a step takes {seconds(step)} instead of "
                    f"{seconds(predicted.step_seconds)}, in {memory(then.total)}"
                ),
                facts={"micro_batch": size, "step_seconds": step, "total": then.total},
                remedy=f"--micro-batch {size}, or leave it out; the global batch stays {plan.global_batch}",
            )
        return

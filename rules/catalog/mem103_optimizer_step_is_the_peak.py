"""The optimizer step, not the forward or backward pass, needs the most memory.

## What it finds
A plan on GPUs that uses more than half of their memory and reaches its peak while the optimizer works.

## Why it matters
torch's default on GPUs updates all tensors at once (foreach) and holds one more copy of the weights of this rank
meanwhile, beside all gradients. A sum of weights, gradients and moments alone "should just fit", and then the first
optimizer step runs out of memory.

## What to do
Give the optimizer `fused=True`: one kernel updates each tensor in place, without the copy. It is also the fastest.

## Source
Measured: 3.0 instead of 2.0 times the bytes of the parameters at the peak of an AdamW step with foreach, none more with
fused; https://docs.pytorch.org/docs/stable/optim.html; a 7B on 8x V100-32GB that failed so:
https://github.com/hiyouga/LLaMA-Factory/issues/1221
"""

from collections.abc import Iterator

from advisor.rules.format import count, memory
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

FUSED = ("adamw", "sgd", "sgd-momentum")  # of our optimizers, those of torch that have a fused form
USED = 0.5  # of what is available; below it the peak does not matter


@rule("MEM103", "optimizer-step-is-the-peak")
def check(case: Case) -> Iterator[Finding]:
    job, plan, predicted = case.job, case.plan, case.predicted
    if job is None or plan is None or predicted is None or plan.launcher.device == "cpu" or plan.cpu_offload:
        return
    needed = predicted.memory
    if needed.peak != "optimizer step" or needed.total < USED * needed.available:
        return
    copy = int(4 * job.trainable_params / plan.shard_size)
    shares = f" / {plan.shard_size}" if plan.shard_size > 1 else ""
    yield Finding(
        code="MEM103",
        name="optimizer-step-is-the-peak",
        severity="info",
        message=(
            f"the peak of {memory(needed.total)} per rank is the optimizer step: temporaries of "
            f"4 B x {count(job.trainable_params)}{shares} = {memory(copy)} are counted beside all gradients"
        ),
        facts={"temporaries": copy, "total": needed.total, "available": needed.available},
        remedy=(
            "give the optimizer fused=True, which needs no temporaries"
            if job.optimizer in FUSED
            else "give the optimizer foreach=False, if it has that option"
        ),
    )

"""Activation checkpointing makes the plan fit; this is its price.

## What it finds
A plan that checkpoints all blocks or every second one, where the same plan without it does not fit.

## Why it matters
Checkpointing keeps only what enters a block and runs its forward pass once more in the backward pass: a third more
compute, 20 to 35 % of a step in practice; half of that where it is every second block. It is the first lever where
activations are the peak, and a loss elsewhere.

## What to do
Nothing, or checkpoint only as many blocks as it takes: the finding says about how many. Offloading activations to the
host costs more and pays at very long sequences only.

## Source
https://arxiv.org/abs/1604.06174; https://github.com/pytorch/torchtitan/pull/165;
https://github.com/huggingface/accelerate/issues/4175 (79.4 to 24.7 GB for 28 % more time)
"""

import math
from collections.abc import Iterator

from msgspec.structs import replace

from advisor.rules.cost import NO_TRANSFERS, Costs, precision_of
from advisor.rules.device import device_of
from advisor.rules.format import memory, percent, seconds
from advisor.rules.memory import recomputed
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.step_time import step_time

WORTH_IT = 0.8  # of the blocks: where more must be recomputed, leaving some out gains little


@rule("MEM113", "activations-are-recomputed")
def check(case: Case) -> Iterator[Finding]:
    job, plan, predicted = case.job, case.plan, case.predicted
    if job is None or plan is None or predicted is None or plan.activation_checkpointing == "none":
        return
    costs = Costs(job, case.machine)
    kept = replace(plan, activation_checkpointing="none")
    whole, needed = costs.memory(kept), predicted.memory
    if whole.total <= whole.available:
        return
    profile, device = costs.profile(precision_of(plan)), device_of(case.machine, plan.gpus[0], plan.precision)
    every = replace(plan, activation_checkpointing="full")
    without, with_it, most = (step_time(job, profile, one, device, NO_TRANSFERS).step for one in (kept, plan, every))
    recomputing, step = with_it - without, predicted.step_seconds
    rest = max(step - recomputing, without)
    blocks = sum(unit.count for unit in profile.units if unit.kind == "block")
    again = sum(sum(each) for _, each in recomputed(profile, plan))
    least = math.ceil(again * (whole.total - whole.available) / max(1, whole.total - needed.total)) + 1
    what, all_blocks = "activation checkpointing", ""
    if plan.activation_checkpointing == "selective":
        what, all_blocks = "recomputing every second block", f"; all blocks: {percent((most - without) / rest)}"
    yield Finding(
        code="MEM113",
        name="activations-are-recomputed",
        severity="info",
        message=(
            f"{what} brings {memory(whole.total)} per rank down to {memory(needed.total)} of "
            f"{memory(needed.available)}, for {seconds(recomputing)} of {seconds(step)} per step: up to "
            f"{percent(recomputing / rest)} more time{all_blocks}"
        ),
        facts={
            "without": whole.total,
            "total": needed.total,
            "step_seconds": step,
            "recomputing_seconds": recomputing,
            "blocks_needed": min(least, again),
            "blocks": blocks,
        },
        remedy=(
            f"none needed; checkpointing about {least} of {blocks} blocks in the script would be enough"
            if least <= WORTH_IT * again
            else "none needed; a smaller model, a shorter --seq or more GPUs would save it"
        ),
    )

"""Gradients are reduced once in several micro-batches, and that saves a good part of the step.

## What it finds
A DDP plan with several micro-batches per optimizer step that would take at least 10 % longer if each of them reduced
its gradients.

## Why it matters
DDP reduces in each backward pass unless it is told not to. On slow links this is most of the step: over two hosts on
Ethernet a batch took 2.00 s, 0.91 s with `no_sync`, and 2.13 s with `no_sync` in the wrong place.

## What to do
Put forward and backward of all but the last micro-batch under `model.no_sync()`, as below.

    for index, batch in enumerate(micro_batches):
        last = index == len(micro_batches) - 1
        with contextlib.nullcontext() if last else model.no_sync():
            (loss_of(model, batch) / len(micro_batches)).backward()

## Source
https://github.com/huggingface/accelerate/issues/1153; torch.nn.parallel.DistributedDataParallel.no_sync
"""

from collections.abc import Iterator

from advisor.rules.alternatives import changed
from advisor.rules.format import percent, seconds
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

LEAST = 0.1  # of the step with a reduction in each micro-batch


@rule("PAR105", "accumulation-hides-communication")
def check(case: Case) -> Iterator[Finding]:
    plan, predicted = case.plan, case.predicted
    if plan is None or predicted is None or plan.strategy != "ddp":
        return
    each = changed(case, sync_each_micro_batch=True) if plan.accumulation > 1 else None
    if each is None or plan.sync_each_micro_batch:
        return
    saved = each.step_seconds - predicted.step_seconds
    if saved < LEAST * each.step_seconds:
        return
    yield Finding(
        code="PAR105",
        name="accumulation-hides-communication",
        severity="info",
        message=(
            f"gradients reduced once in {plan.accumulation} micro-batches: {seconds(predicted.step_seconds)} per "
            f"step; reduced in each of them {seconds(each.step_seconds)}, so no_sync saves "
            f"{percent(saved / each.step_seconds)}"
        ),
        facts={
            "accumulation": plan.accumulation,
            "step_seconds": predicted.step_seconds,
            "reduced_each_time": each.step_seconds,
        },
        remedy="put forward and backward of all micro-batches but the last under model.no_sync()",
    )

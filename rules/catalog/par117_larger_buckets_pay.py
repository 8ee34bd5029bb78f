"""Gradients travel in larger buckets than PyTorch's own, because the timeline of the step gains by it.

## What it finds
A DDP plan with a bucket cap of its own, and the step with PyTorch's 25 MiB (a first bucket of 1).

## Why it matters
Each bucket is one all-reduce and pays its latency, which over hosts or many ranks is as long as the transfer of
megabytes. Larger buckets pay it less often; but the last bucket closes with the backward pass and is never hidden, so
ever larger ones lose again.

## What to do
Nothing with `advisor apply`. Elsewhere pass it: `DistributedDataParallel(model, bucket_cap_mb=...)`.

## Source
https://github.com/pytorch/pytorch/issues/118421; docs/models.md for the timeline
"""

import math
from collections.abc import Iterator

from advisor.rules.alternatives import changed
from advisor.rules.format import percent, seconds
from advisor.rules.memory import reduce_bytes
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.step_time import DEFAULT_BUCKET_MIB, MIB


@rule("PAR117", "larger-buckets-pay")
def check(case: Case) -> Iterator[Finding]:
    plan, predicted, job = case.plan, case.predicted, case.job
    if plan is None or predicted is None or job is None or plan.strategy != "ddp" or plan.bucket_cap_mb is None:
        return
    usual = changed(case, bucket_cap_mb=None)
    if usual is None or usual.step_seconds <= predicted.step_seconds:
        return
    size = reduce_bytes(plan) * job.trainable_params / MIB
    ours, theirs = math.ceil(size / plan.bucket_cap_mb), 1 + math.ceil(size / DEFAULT_BUCKET_MIB)
    yield Finding(
        code="PAR117",
        name="larger-buckets-pay",
        severity="info",
        message=(
            f"buckets of {plan.bucket_cap_mb:g} MiB: about {ours} reductions instead of {theirs}, "
            f"{seconds(predicted.step_seconds)} per step instead of {seconds(usual.step_seconds)} "
            f"({percent(1 - predicted.step_seconds / usual.step_seconds)} less)"
        ),
        facts={
            "bucket_cap_mb": plan.bucket_cap_mb,
            "step_seconds": predicted.step_seconds,
            "step_seconds_by_default": usual.step_seconds,
        },
        remedy=f"none needed with advisor apply; elsewhere pass bucket_cap_mb={plan.bucket_cap_mb:g}",
    )

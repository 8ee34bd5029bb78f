"""The script gives DDP a bucket size that is tiny, or that keeps the reduction from overlapping.

## What it finds
A constant `bucket_cap_mb` in the script's DistributedDataParallel call: below 5; exactly 25; or at least as large as
all gradients together, where the model is known. Silent where the plan sets its own, which `advisor apply` then uses.

## Why it matters
Tiny buckets pay the latency of an all-reduce for each few parameters: 1 MB cost 1-4 % against 25 on 8 hosts, 16 % at
the 95th percentile. 25 is not the default: without the argument the first bucket is 1 MiB, so that sending starts
early. One bucket for everything is sent when the backward pass is over, and hides nothing.

## What to do
Leave `bucket_cap_mb` out; the plan sets a size where the timeline gains by one.

## Source
PyTorch, benchmarks/distributed/ddp/README.md; torch.nn.parallel.DistributedDataParallel, `_BucketCapacityConfig`
"""

from collections.abc import Iterator

from advisor.rules.format import memory
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.step_time import DEFAULT_BUCKET_MIB, MIB

TINY = 5  # MiB


@rule("PAR119", "bucket-size-in-script")
def check(case: Case) -> Iterator[Finding]:
    script, plan, job = case.script, case.plan, case.job
    cap = script.ddp_arguments.get("bucket_cap_mb") if script else None
    if script is None or isinstance(cap, bool) or not isinstance(cap, int | float):
        return
    if plan is not None and (plan.ranks == 1 or plan.strategy != "ddp" or plan.bucket_cap_mb is not None):
        return
    gradients = 4.0 * job.trainable_params if job else None
    if cap < TINY:
        why = "each all-reduce carries so little that its latency counts"
        if gradients:
            why += f": about {gradients / MIB / max(cap, 1e-3):.0f} of them for {memory(gradients)} of gradients"
    elif gradients is not None and cap * MIB >= gradients:
        why = f"all {memory(gradients)} of gradients are one bucket, which leaves when the backward pass is over"
    elif cap == DEFAULT_BUCKET_MIB:
        why = "this is not the default: without it the first bucket is 1 MiB, and sending starts earlier"
    else:
        return
    yield Finding(
        code="PAR119",
        name="bucket-size-in-script",
        severity="info",
        message=f"bucket_cap_mb={cap:g} in the script: {why}",
        facts={"bucket_cap_mb": cap, "gradients": gradients},
        remedy="leave bucket_cap_mb out of the DistributedDataParallel call",
        file=script.path,
        line=ddp_line(case),
    )


def ddp_line(case: Case) -> int | None:
    """Return the line of the script's DistributedDataParallel call."""
    lines = case.script.lines if case.script else {}
    return next((line for name, line in lines.items() if name.endswith(".DistributedDataParallel")), None)

"""Something already computes on a GPU.

## What it finds
GPUs of this machine that were busy for a fifth of the last second or more when it was probed. Texts are not judged:
they may be taken under the very job that they are about.

## Why it matters
Two jobs on one GPU take turns: each runs at half its speed or less, and the other ranks wait for it. Times that are
measured there mean nothing. NCCL's kernels spin while they wait, so a hung job shows 100 % too.

## What to do
See whose it is and wait, or choose other GPUs. Nothing here ends other people's processes.

## Source
https://docs.nvidia.com/deploy/nvidia-smi/
"""

from collections.abc import Iterator

from advisor.rules.format import percent
from advisor.rules.host_ranks import gpus_of
from advisor.rules.machine import LIVE
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

BUSY = 0.2
SHOWN = 3


@rule("ENV140", "gpu-is-already-computing")
def check(case: Case) -> Iterator[Finding]:
    busy = [gpu for gpu in gpus_of(case) if gpu.utilization is not None and gpu.utilization >= BUSY]
    if not busy or case.machine.source != LIVE:  # a text may be taken under the very job that it is about
        return
    shares = ", ".join(f"{gpu.id} {percent(gpu.utilization or 0)}" for gpu in busy)
    users = [f"{process.pid} {process.name or ''}".strip() for gpu in busy for process in gpu.processes or ()]
    by = f", by {', '.join(users[:SHOWN])}" if users else ""
    yield Finding(
        code="ENV140",
        name="gpu-is-already-computing",
        severity="warning",
        message=f"{len(busy)} of {len(case.machine.gpus)} GPUs were computing when probed: {shares}{by}",
        facts={"gpus": {gpu.id: gpu.utilization for gpu in busy}, "processes": users},
        remedy="nvidia-smi; wait for that job, or choose other GPUs with CUDA_VISIBLE_DEVICES",
    )

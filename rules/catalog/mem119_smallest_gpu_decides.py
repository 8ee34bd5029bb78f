"""GPUs differ in memory, and each rank gets only as much as the smallest has.

## What it finds
GPUs of the plan (without a plan: of the machine) whose memory differs by more than 5 %.

## Why it matters
DDP and FSDP give each rank the same batch and an equal share of the states, so the smallest GPU decides for all; what
the larger ones have beyond it is not used.

## What to do
Leave the smallest out if the rest is as fast (--gpus N, or CUDA_VISIBLE_DEVICES), or give them another job.

## Source
rules/memory.py, available_bytes; https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

from collections.abc import Iterator

from advisor.rules.cpu_ranks import is_cpu
from advisor.rules.format import ids, memory
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

DIFFERENCE = 0.05  # ECC or a driver take up to 1 % on equal parts


@rule("MEM119", "smallest-gpu-decides")
def check(case: Case) -> Iterator[Finding]:
    used = {gpu.id for gpu in case.machine.gpus} if case.plan is None else set(case.plan.gpus)
    sizes = {gpu.id: gpu.memory for gpu in case.machine.gpus if gpu.id in used and gpu.memory and not is_cpu(gpu)}
    least, most = min(sizes.values(), default=0), max(sizes.values(), default=0)
    if len(sizes) < 2 or most - least <= DIFFERENCE * most:
        return
    small = [gpu for gpu, size in sizes.items() if size - least <= DIFFERENCE * most]
    large = [gpu for gpu in sizes if gpu not in small]
    unused = sum(sizes.values()) - least * len(sizes)
    yield Finding(
        code="MEM119",
        name="smallest-gpu-decides",
        severity="info",
        message=(
            f"{ids(small)} {'has' if len(small) == 1 else 'have'} {memory(least)}, {ids(large)} up to {memory(most)}: "
            f"each rank can use {memory(least)}, {memory(unused)} stay unused"
        ),
        facts={"smallest": small, "least": least, "most": most, "unused": unused},
        remedy=f"leave {ids(small)} out with CUDA_VISIBLE_DEVICES, or use it for another job, and compare",
    )

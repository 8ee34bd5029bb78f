"""Something else holds much of a GPU's memory.

## What it finds
A GPU of the plan (without a plan: any) of whose memory more than a tenth, and more than 2 GB, was in use when the
machine was probed.

## Why it matters
The plan can only use what is free on its fullest GPU, on all of them. An interrupted run often leaves workers behind
that keep their memory, and the process table of `nvidia-smi` may show none: they are in another container, or belong to
another user. A job that still works there also takes compute time.

## What to do
Find the holder with `nvidia-smi` and `fuser -v /dev/nvidia*` (as root, outside containers). End it if it is yours; else
choose other GPUs with CUDA_VISIBLE_DEVICES. Then probe again.

## Source
https://github.com/pytorch/pytorch/issues/5736, /4031 and /1085
"""

from collections.abc import Iterator

from advisor.rules.cpu_ranks import is_cpu
from advisor.rules.format import ids, memory
from advisor.rules.machine import Gpu
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

SHARE, LEAST = 0.1, 2e9  # of the GPU; bytes: a desktop, or a context that nobody uses
SHOWN = 4  # processes


@rule("MEM108", "gpu-memory-in-use")
def check(case: Case) -> Iterator[Finding]:
    chosen = {gpu.id for gpu in case.machine.gpus} if case.plan is None else set(case.plan.gpus)
    held = [gpu for gpu in case.machine.gpus if gpu.id in chosen and not is_cpu(gpu) and _is_held(gpu)]
    if not held:
        return
    worst = max(held, key=lambda gpu: gpu.memory_used or 0)
    names = [gpu.id for gpu in held]
    most = f"up to {memory(worst.memory_used)}" if len(held) > 1 else memory(worst.memory_used)
    yield Finding(
        code="MEM108",
        name="gpu-memory-in-use",
        severity="warning",
        message=(
            f"{ids(names)}: {most} of {memory(worst.memory)} {'was' if len(held) == 1 else 'were'} in use before the "
            f"job starts, {_holders(held)}; each rank can only use what is free on the fullest"
        ),
        facts={
            "gpus": names,
            "used": {gpu.id: gpu.memory_used for gpu in held},
            "processes": {gpu.id: [process.pid for process in gpu.processes or ()] for gpu in held},
        },
        remedy=(
            "find the holder with nvidia-smi and fuser -v /dev/nvidia*; end it if it is yours, or choose other GPUs "
            "with CUDA_VISIBLE_DEVICES; then probe again"
        ),
    )


def _is_held(gpu: Gpu) -> bool:
    return bool(gpu.memory and gpu.memory_used) and (gpu.memory_used or 0) > max(LEAST, SHARE * (gpu.memory or 0))


def _holders(gpus: list[Gpu]) -> str:
    """Name the processes that the driver lists; it hides those of other containers."""
    listed = {process.pid: process for gpu in gpus for process in gpu.processes or ()}
    if not listed:
        known = any(gpu.processes is not None for gpu in gpus)
        return "by no process that the driver shows" if known else "by processes that are not known"
    said = [f"{process.pid} ({process.name})" if process.name else str(pid) for pid, process in listed.items()]
    more = f" and {len(said) - SHOWN} more" if len(said) > SHOWN else ""
    return f"by process {', '.join(said[:SHOWN])}{more}"

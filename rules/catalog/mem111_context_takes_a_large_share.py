"""CUDA's context and NCCL's buffers take much of a small GPU.

## What it finds
A plan that uses more than 80 % of its GPUs, on GPUs of which context and buffers take a tenth or more.

## Why it matters
Each process has a CUDA context of about 0.8 GB, and each NCCL communicator 0.4 GB, or 0.9 GB over NVLink. The allocator
does not count them: `torch.cuda.memory_allocated` looks as if there were room.

## What to do
Make no process groups that are not needed, since each that communicates has buffers of its own. Keep other programs
(a desktop, a notebook) off these GPUs.

## Source
Measured with one and two processes, docs/models.md; https://github.com/NVIDIA/nccl/issues/986
"""

from collections.abc import Iterator

from advisor.rules.format import memory, percent
from advisor.rules.memory import CONTEXT_BYTES, context_bytes
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

SHARE = 0.1  # of the GPU
USED = 0.8  # of what is available


@rule("MEM111", "context-takes-a-large-share")
def check(case: Case) -> Iterator[Finding]:
    plan, predicted = case.plan, case.predicted
    if plan is None or predicted is None or plan.launcher.device == "cpu":
        return
    needed = predicted.memory
    sizes = [gpu.memory for gpu in case.machine.gpus if gpu.id in set(plan.gpus) and gpu.memory]
    fixed = context_bytes(plan, case.machine)
    size = min(sizes, default=0)
    if fixed < SHARE * size or needed.total < USED * needed.available:
        return
    buffers = f" and {memory(fixed - CONTEXT_BYTES)} of NCCL buffers" if fixed > CONTEXT_BYTES else ""
    yield Finding(
        code="MEM111",
        name="context-takes-a-large-share",
        severity="info",
        message=(
            f"{memory(CONTEXT_BYTES)} of CUDA context{buffers} take {percent(fixed / size)} of {memory(size)} before "
            "the first tensor"
        ),
        facts={"context": int(fixed), "memory": size},
        remedy="make no further process groups, and keep desktops and notebooks off these GPUs",
    )

"""NCCL_SHM_DISABLE keeps processes of one host from sharing memory.

## What it finds
NCCL_SHM_DISABLE=1 on a machine where two GPUs have neither NVLink nor a direct copy between them, so that NCCL would
use shared host memory.

## Why it matters
What is left is the network stack, over loopback. Measured on two H200: 3.4 instead of 27 GB/s all-reduce, and a DDP
step of a 1.4B GPT of 2.0 s instead of 0.28 s.

## What to do
Unset it. If it was set because /dev/shm was too small: docker run --shm-size=1g, or --ipc=host.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-shm-disable; docs/models.md for the
measurements
"""

from collections.abc import Iterator

from advisor.rules.format import plural
from advisor.rules.nccl_variables import number_of, setting
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

DIRECT = ("nvlink", "xgmi", "c2c", "pcie-switch", "pcie-switches")


@rule("ENV111", "shared-memory-switched-off")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    found = setting(machine, "NCCL_SHM_DISABLE")
    gpus = {gpu.id for gpu in machine.gpus}
    if found is None or not number_of(machine, "NCCL_SHM_DISABLE") or len(gpus) == 1:
        return
    off = number_of(machine, "NCCL_P2P_DISABLE") == 1
    shared = [k for k in machine.links if {k.a, k.b} <= gpus and (off or k.kind not in DIRECT)]
    yield Finding(
        code="ENV111",
        name="shared-memory-switched-off",
        severity="warning" if shared else "info",
        message=f"{found.words}: "
        + (
            f"{plural(len(shared), 'pair')} of GPUs talk over TCP: 3.4 instead of 27 GB/s all-reduce on two H200"
            if shared
            else "GPUs that can't copy to each other would talk over TCP; here none is known"
        ),
        facts=found.facts | {"pairs": len(shared)},
        remedy=f"{found.undo}; if /dev/shm is too small, docker run --shm-size=1g",
    )

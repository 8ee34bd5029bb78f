"""This NCCL can't allocate its host buffers in an ordinary container.

## What it finds
NCCL 2.24 to 2.26.4 in a container, with a driver for CUDA 12.6 or later, where NCCL_CUMEM_HOST_ENABLE is not set.

## Why it matters
These versions allocate shared host memory through CUDA on the GPU's NUMA node, which Docker forbids without the
capability SYS_NICE: NCCL stops at start. From 2.26.5 on it tests this and falls back to /dev/shm.

## What to do
Nothing: the plan sets NCCL_CUMEM_HOST_ENABLE=0 for these versions, so that NCCL uses /dev/shm. Better, update NCCL, or
start the container with --cap-add SYS_NICE.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-cumem-host-enable
"""

from collections.abc import Iterator

from advisor.rules.host_ranks import ranks
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.versions import at_least, older

VARIABLE = "NCCL_CUMEM_HOST_ENABLE"
FIRST, MENDED = "2.24", "2.26.5"


@rule("ENV132", "nccl-host-memory-in-container")
def check(case: Case) -> Iterator[Finding]:
    machine, software = case.machine, case.machine.software
    concerned = at_least(software.nccl, FIRST) and older(software.nccl, MENDED)
    used = at_least(software.cuda_driver, "12.6") and not older(software.torch_cuda, "12.2")
    if not (machine.host.container and concerned and used) or VARIABLE in machine.environment or ranks(case) < 2:
        return
    yield Finding(
        code="ENV132",
        name="nccl-host-memory-in-container",
        severity="info",
        message=f"NCCL {software.nccl} in a container needs SYS_NICE until {MENDED}; the plan sets {VARIABLE}=0",
        facts={"nccl": software.nccl, "cuda_driver": software.cuda_driver, "env": {VARIABLE: "0"}},
        remedy=f"docker run --cap-add SYS_NICE, or export {VARIABLE}=0",
    )

"""CUDA's multi-process service (MPS) runs.

## What it finds
The MPS daemon on this host, or variables that point to one.

## Why it matters
MPS lets processes share a GPU, but NCCL still refuses two ranks of one communicator on the same GPU ("Duplicate GPU
detected"). A fault in one process of MPS can end the others, and a limit of active threads makes training slower.

## What to do
One rank for each GPU. Stop the daemon where nothing else needs it.

## Source
https://docs.nvidia.com/deploy/mps/; https://github.com/NVIDIA/nccl/issues/418
"""

from collections.abc import Iterator

from advisor.rules.format import plural
from advisor.rules.host_ranks import gpus_of
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

LIMIT = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


@rule("ENV126", "mps-daemon-runs")
def check(case: Case) -> Iterator[Finding]:
    environment = case.machine.environment
    if not case.machine.software.mps and not any(name.startswith("CUDA_MPS_") for name in environment):
        return
    share = environment.get(LIMIT)
    limited = f"; {LIMIT}={share} leaves each process that share of a GPU" if share else ""
    gpus = len(gpus_of(case))
    yield Finding(
        code="ENV126",
        name="mps-daemon-runs",
        severity="info",
        message=f"MPS runs, and NCCL still takes one rank for each GPU: {plural(gpus, 'rank')} here{limited}",
        facts={"gpus": gpus, "thread_percentage": share},
        remedy="echo quit | nvidia-cuda-mps-control, unless another job on this host needs it",
    )

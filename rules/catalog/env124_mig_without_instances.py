"""MIG is switched on and no instance is made.

## What it finds
A GPU in MIG mode without instances. MEM116 tells of GPUs that are cut into some.

## Why it matters
CUDA shows a process instances only, so it does not show this GPU at all: "no CUDA-capable device is detected".

## What to do
Switch MIG off to use the whole GPU, or make instances. Each trains alone: NCCL joins no two of one GPU.

## Source
https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
"""

from collections.abc import Iterator

from advisor.rules.format import ids
from advisor.rules.host_ranks import gpus_of
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("ENV124", "mig-without-instances")
def check(case: Case) -> Iterator[Finding]:
    empty = [gpu for gpu in gpus_of(case) if gpu.mig == ()]
    if not empty:
        return
    numbers = ",".join(str(gpu.index) for gpu in empty)
    yield Finding(
        code="ENV124",
        name="mig-without-instances",
        severity="error",
        message=f"MIG is on and no instance is made on {ids([gpu.id for gpu in empty])}: CUDA shows no device there",
        facts={"gpus": [gpu.id for gpu in empty]},
        remedy=f"sudo nvidia-smi -i {numbers} -mig 0; for instances sudo nvidia-smi mig -i {numbers} -cgi PROFILE -C",
    )

"""A GPU has uncorrectable memory errors.

## What it finds
Uncorrectable ECC errors since the driver was loaded.

## Why it matters
Each of them ended the program that met it. A GPU that had one is likely to have more, and a job on all GPUs ends with
the first.

## What to do
Reset the GPU when it is idle, which retires the bad rows. If errors come back, run `dcgmi diag -r 3` and have the GPU
replaced; until then plan without it.

## Source
https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/
"""

from collections.abc import Iterator

from advisor.rules.host_ranks import gpus_of
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("ENV137", "gpu-memory-errors")
def check(case: Case) -> Iterator[Finding]:
    errors = {gpu.id: gpu.ecc_uncorrected for gpu in gpus_of(case) if gpu.ecc_uncorrected}
    if not errors:
        return
    listed = ", ".join(f"{count} on {gpu}" for gpu, count in errors.items())
    numbers = ",".join(str(gpu.index) for gpu in case.machine.gpus if gpu.id in errors)
    yield Finding(
        code="ENV137",
        name="gpu-memory-errors",
        severity="warning",
        message=f"uncorrectable memory errors since the driver was loaded: {listed}",
        facts={"errors": errors},
        remedy=f"sudo nvidia-smi --gpu-reset -i {numbers}; dcgmi diag -r 3; leave the GPU out if they come back",
    )

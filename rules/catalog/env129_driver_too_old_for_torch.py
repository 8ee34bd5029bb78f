"""torch is built for a newer CUDA than the driver can run.

## What it finds
A torch whose CUDA has a higher major version than the newest that the driver runs (in the corner of `nvidia-smi`).

## Why it matters
CUDA does not start: "The NVIDIA driver on your system is too old". Inside one major version older drivers do work, so
12.8 on a driver for 12.2 is no finding. On data-centre GPUs NVIDIA's compatibility package can bridge one version.

## What to do
Update the driver, or install a torch that is built for the CUDA that the driver has.

## Source
https://docs.nvidia.com/deploy/cuda-compatibility/
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.versions import major

OLDEST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}  # on Linux


@rule("ENV129", "driver-too-old-for-torch")
def check(case: Case) -> Iterator[Finding]:
    software = case.machine.software
    built, runs = major(software.torch_cuda), major(software.cuda_driver)
    if built is None or runs is None or built <= runs:
        return
    driver = f"driver {software.driver}" if software.driver else "the driver"
    oldest = OLDEST_DRIVER.get(built)
    yield Finding(
        code="ENV129",
        name="driver-too-old-for-torch",
        severity="error",
        message=(
            f"torch {software.torch or ''} is built for CUDA {software.torch_cuda}; "
            f"{driver} runs CUDA up to {software.cuda_driver}".replace("  ", " ")
        ),
        facts={"torch_cuda": software.torch_cuda, "cuda_driver": software.cuda_driver, "driver": software.driver},
        remedy=(
            f"update the driver{f' to {oldest} or newer' if oldest else ''}, "
            f"or install a torch built for CUDA {runs} (https://pytorch.org/get-started/previous-versions)"
        ),
    )

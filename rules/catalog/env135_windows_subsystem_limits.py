"""This is the Windows Subsystem for Linux (WSL 2).

## What it finds
A kernel of WSL, by its name.

## Why it matters
Windows owns the GPU: the graphics driver's limits hold for pinned memory and for peer access, what NVML tells is
partial, and files under /mnt are read through a network protocol, many times slower than inside the Linux disk.

## What to do
Keep code and data in the Linux file system, and measure links rather than trust their labels. For several GPUs,
plain Linux is the better host.

## Source
https://docs.nvidia.com/cuda/wsl-user-guide/
"""

from collections.abc import Iterator

from advisor.rules.format import plural
from advisor.rules.host_ranks import gpus_of
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("ENV135", "windows-subsystem-limits")
def check(case: Case) -> Iterator[Finding]:
    system, gpus = (case.machine.host.os or "").lower(), len(gpus_of(case))
    if not gpus or not ("wsl2" in system or "microsoft-standard" in system):
        return
    yield Finding(
        code="ENV135",
        name="windows-subsystem-limits",
        severity="info",
        message=f"{plural(gpus, 'GPU')} under WSL: pinned memory and peer access are limited, /mnt is slow to read",
        facts={"os": case.machine.host.os, "gpus": gpus},
        remedy="keep data inside the Linux disk (~/data, not /mnt/c); for several GPUs use plain Linux",
    )

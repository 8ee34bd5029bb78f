"""/dev/shm is large enough, but full.

## What it finds
A /dev/shm with less than 64 MiB free for each GPU and more than half of it in use.

## Why it matters
NCCL's first segment then fails with "No space left on device", or a loader's worker dies with "Bus error". Dead runs
leave their segments behind; another job on the host may use the space as well.

## What to do
See what is there and remove what no process has open; CPU110 lists left segments of NCCL.

## Source
https://github.com/llm-d/llm-d/issues/352; https://github.com/NVIDIA/nccl/issues/342
"""

from collections.abc import Iterator

from advisor.rules.format import binary, plural
from advisor.rules.hardware import MIB
from advisor.rules.host_ranks import gpus_of
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

WANTED = 64 * MIB  # for each GPU


@rule("CPU109", "shared-memory-full")
def check(case: Case) -> Iterator[Finding]:
    size, free, gpus = case.machine.host.shm, case.machine.host.shm_free, len(gpus_of(case))
    if size is None or free is None or free >= gpus * WANTED or free > size / 2:
        return
    yield Finding(
        code="CPU109",
        name="shared-memory-full",
        severity="warning",
        message=(
            f"/dev/shm has {binary(free)} free of {binary(size)}; "
            f"{plural(gpus, 'GPU')} x {binary(WANTED)} = {binary(gpus * WANTED)} wanted"
        ),
        facts={"size": size, "free": free, "wanted": gpus * WANTED},
        remedy="ls -lS /dev/shm; fuser -v /dev/shm/*; remove what no process has open",
    )

"""/dev/shm is too small for NCCL and the loader's workers.

## What it finds
A /dev/shm below 128 MiB for each GPU (and below 256 MiB at all): 64 for NCCL's buffers and 64 for batches on the way
from DataLoader workers, which use the same space. Docker's default is 64 MiB in all.

## Why it matters
Where GPUs can't reach each other, NCCL puts 9.6 MB for each channel there and fails with "No space left on device".
DataLoader workers die with "Bus error". Machines with NVLink often get by, until workers are used.

## What to do
Give the container more: --shm-size=1g or larger, or the host's own with --ipc=host; in Kubernetes, mount an emptyDir
volume of medium Memory at /dev/shm. NCCL_SHM_DISABLE=1 would send the traffic through sockets, which is far slower.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html; https://github.com/NVIDIA/nccl/issues/342
"""

from collections.abc import Iterator

from advisor.rules.format import binary, plural
from advisor.rules.hardware import GIB, MIB
from advisor.rules.host_ranks import gpus_of
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

NCCL_BYTES, LOADER_BYTES = 64 * MIB, 64 * MIB  # for each GPU
LEAST = 256 * MIB


@rule("CPU108", "shared-memory-too-small")
def check(case: Case) -> Iterator[Finding]:
    size, gpus = case.machine.host.shm, len(gpus_of(case))
    wanted = max(LEAST, gpus * (NCCL_BYTES + LOADER_BYTES))
    if size is None or not gpus or size >= wanted:
        return
    gib = -(-wanted // GIB)
    yield Finding(
        code="CPU108",
        name="shared-memory-too-small",
        severity="warning" if gpus > 1 and size < gpus * NCCL_BYTES else "info",
        message=(
            f"/dev/shm has {binary(size)}; NCCL and the DataLoader workers of {plural(gpus, 'GPU')} share it "
            f"and want {binary(wanted)}"
        ),
        facts={"size": size, "wanted": wanted, "gpus": gpus},
        remedy=(
            f"docker run --shm-size={gib}g (or --ipc=host); Kubernetes: an emptyDir with medium: Memory at /dev/shm; "
            f"on the host: mount -o remount,size={gib}G /dev/shm"
        ),
    )

"""libfabric took TCP instead of the provider for RDMA.

## What it finds
"NET/OFI Selected Provider is tcp" in NCCL's log: the cloud's plugin is there, its adapters are not, mostly since a
container does not see /dev/infiniband.

## Why it matters
Four EFA adapters of 100 Gb/s stand idle while one socket carries the traffic. No NCCL variable mends it.

## What to do
Pass the devices into the container, raise memlock and use an image with EFA's libraries. The log must then say
"Selected Provider is efa (found 4 nics)", with as many as the instance has.

## Source
https://github.com/aws/aws-ofi-nccl/issues/803
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("NET129", "libfabric-without-rdma")
def check(case: Case) -> Iterator[Finding]:
    log, host = case.machine.nccl_log, case.machine.host
    if log is None or log.provider not in ("tcp", "sockets") or case.machine.nodes == 1:
        return
    missing = "; /dev/infiniband is missing" if host.rdma_devices is False else ""
    inside = " in this container" if host.container else ""
    yield Finding(
        code="NET129",
        name="libfabric-without-rdma",
        severity="warning",
        message=(
            f"libfabric selected the provider {log.provider}, not efa{missing}{inside}: no NCCL variable mends that"
        ),
        facts={"provider": log.provider, "rdma_devices": host.rdma_devices},
        remedy=(
            "pass the devices in: --device=/dev/infiniband/uverbs0 (each of them) --ulimit memlock=-1; NCCL's log must "
            "say 'Selected Provider is efa' with the number of adapters"
        ),
    )

"""NCCL_P2P_DISABLE is set on a machine whose GPUs have NVLink.

## What it finds
NCCL_P2P_DISABLE=1 in the environment, and NVLink between GPUs.

## Why it matters
It sends all traffic through host memory. Measured on two H200 with 18 NVLinks: 27 instead of 326 GB/s all-reduce, and a
DDP step of a 1.4B GPT of 278 instead of 169 ms.

## What to do
Unset it. If training then hangs or is wrong, peer-to-peer is broken on this host (ACS or IOMMU are the usual cause) and
the host needs mending.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html; docs/models.md for the measurements
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("NET102", "nvlink-switched-off")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    value = machine.environment.get("NCCL_P2P_DISABLE", "0")
    nvlinks = [link for link in machine.links if link.kind == "nvlink"]
    if value in ("", "0") or not nvlinks:
        return
    yield Finding(
        code="NET102",
        name="nvlink-switched-off",
        severity="warning",
        message=f"NCCL_P2P_DISABLE={value} sends the traffic of {len(nvlinks)} NVLinked GPU pairs through host memory",
        facts={"pairs": len(nvlinks)},
        remedy="unset NCCL_P2P_DISABLE",
    )

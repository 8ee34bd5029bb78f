"""The IOMMU translates addresses on a bare-metal host whose GPUs talk over PCIe.

## What it finds
intel_iommu=on and the like without iommu=pt, outside of a virtual machine, with GPUs that exchange data over PCIe or
with the network; and faults of the IOMMU in the kernel's log.

## Why it matters
Peer-to-peer writes then go up to the root and may be refused there: NCCL hangs in the first all-reduce, or data is
wrong. Four GTX 1080 Ti hung until intel_iommu=off.

## What to do
Boot with iommu=pt, or intel_iommu=off (amd_iommu=off). Until the reboot NCCL_P2P_DISABLE=1 avoids the hang, at the
price of the slower way through host memory; the plan sets it only where the kernel's log shows that the IOMMU refused
a GPU.

## Source
https://github.com/NVIDIA/nccl/issues/257;
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html, "PCI Access Control Services"
"""

import re
from collections.abc import Iterator

from advisor.rules.machine import Machine
from advisor.rules.network import rdma_nics, unset
from advisor.rules.nvlinks import model_of
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.topology import gpu_links
from advisor.rules.transport import peer_to_peer

_FAULT = re.compile(r"DMAR:.*(?:DMA (?:Read|Write)|fault)|PTE (?:Read|Write) access|IO_PAGE_FAULT", re.IGNORECASE)
_DEVICE = re.compile(r"(?:device |device=|\[)(?:[0-9a-f]{4}:)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)


@rule("NET123", "iommu-translates")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    if machine.host.iommu != "translating" or machine.host.virtual or not _matters(machine):
        return
    faults = [line for line in machine.kernel_log if _FAULT.search(line)]
    refused = sorted(_refused_gpus(machine, faults))
    env = unset(machine, {"NCCL_P2P_DISABLE": "1"}) if refused else {}
    amd = machine.host.cpu_vendor == "AuthenticAMD"
    off = "amd_iommu=off" if amd else "intel_iommu=off"
    yield Finding(
        code="NET123",
        name="iommu-translates",
        severity="warning" if faults or _over_pcie(machine) else "info",
        message=(
            "the IOMMU translates on this bare-metal host: peer-to-peer over PCIe may hang or be slow"
            + (f"; the kernel's log has {len(faults)} lines of refused accesses" if faults else "")
            + (f", of {', '.join(refused)}" if refused else "")
        ),
        facts={"faults": len(faults), "gpus": refused} | ({"env": env} if env else {}),
        remedy=(
            f"add iommu=pt (or {off}) to the kernel's command line and reboot; if training hangs meanwhile, "
            "NCCL_P2P_DISABLE=1 takes the slower way through host memory"
        ),
    )


def _matters(machine: Machine) -> bool:
    return _over_pcie(machine) or (machine.nodes > 1 and bool(rdma_nics(machine)))


def _over_pcie(machine: Machine) -> bool:
    """Say whether GPUs of this host would exchange data directly over PCIe."""
    links = gpu_links(machine).values()
    if len(machine.gpus) < 2 or not peer_to_peer(machine) or (links and all(k.kind == "nvlink" for k in links)):
        return False
    told = [access.status for access in machine.peer_access if access.capability == "read"]
    models = [model_of(gpu) for gpu in machine.gpus]
    return "OK" in told if told else any(model is not None and model.pcie_p2p for model in models)


def _refused_gpus(machine: Machine, faults: list[str]) -> set[str]:
    addresses = {match[1].lower() for line in faults for match in _DEVICE.finditer(line)}
    return {gpu.id for gpu in machine.gpus if gpu.bus_id and gpu.bus_id[-7:].lower() in addresses}

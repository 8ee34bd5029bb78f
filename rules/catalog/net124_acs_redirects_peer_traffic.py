"""PCIe Access Control Services send traffic between devices up to the root.

## What it finds
ACS switched on at bridges above GPUs of a bare-metal host, where GPUs, or GPUs and RDMA adapters, share a PCIe switch.

## Why it matters
Two devices below one switch could talk at the full speed of their slots. With ACS each packet goes up to the CPU and
down again: it shares the uplink, is slower, and has been seen to hang NCCL. In a virtual machine ACS must stay on.

## What to do
Switch it off in the BIOS, or for each bridge until the next boot: setpci -s BRIDGE ECAP_ACS+0x6.w=0000.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html, "PCI Access Control Services (ACS)";
https://github.com/NVIDIA/nccl/issues/2079
"""

from collections.abc import Iterator

from advisor.rules.format import ids
from advisor.rules.machine import Machine
from advisor.rules.network import DIRECT_PCIE, rdma_nics
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.transport import peer_to_peer


@rule("NET124", "acs-redirects-peer-traffic")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    if not machine.host.acs or machine.host.virtual or not peer_to_peer(machine):
        return
    devices = _below_switches(machine)
    if not devices:
        return
    yield Finding(
        code="NET124",
        name="acs-redirects-peer-traffic",
        severity="warning",
        message=f"ACS is on: traffic between {ids(devices)}, which share PCIe switches, goes up to the CPU and back",
        facts={"devices": devices},
        remedy=(
            "lspci -vvv | grep ACSCtl; switch ACS off in the BIOS, or setpci -s BRIDGE ECAP_ACS+0x6.w=0000 for each "
            "bridge above a GPU"
        ),
    )


def _below_switches(machine: Machine) -> list[str]:
    """List the GPUs, and on several hosts the RDMA adapters, that could talk below a switch."""
    talk = [gpu.id for gpu in machine.gpus]
    talk += [nic.id for nic in rdma_nics(machine)] if machine.nodes > 1 else []
    found = {
        end
        for link in machine.links
        if link.kind in DIRECT_PCIE and link.a in talk and link.b in talk
        for end in (link.a, link.b)
    }
    gpus = {gpu.id for gpu in machine.gpus}
    return [name for name in talk if name in found] if found & gpus else []

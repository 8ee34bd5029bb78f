"""Say which GPUs of the host this process can't see: those that its container was not given."""

from pathlib import Path

from msgspec import structs

from advisor.probe.live.host import in_container
from advisor.probe.live.sysfs import ROOT, folders
from advisor.rules.machine import Machine, Unknown
from advisor.rules.pci import pci_address


def with_withheld(machine: Machine, root: Path = ROOT) -> Machine:
    """Say how many GPUs the kernel knows that NVML does not list, as where a container was given 2 of 8."""
    listed = {gpu.bus_id for gpu in machine.gpus}
    if not machine.gpus or None in listed or any(gap.why.startswith("left out") for gap in machine.unknown):
        return machine
    there = {node.id for node in machine.pci if node.kind == "gpu"}
    there |= {pci_address(folder.name) for folder in folders(root / "proc/driver/nvidia/gpus")}
    withheld = sorted(there - listed)
    if not withheld:
        return machine
    why = f"the kernel knows {', '.join(withheld)}, NVML does not list them; see `dmesg | grep -i nvrm`"
    if in_container(root):
        given = machine.environment.get("NVIDIA_VISIBLE_DEVICES")
        why = "this container was not given them" + (f": NVIDIA_VISIBLE_DEVICES={given}" if given else "")
    gap = Unknown(what=f"{len(withheld)} more GPU(s)", why=why)
    return structs.replace(machine, unknown=(*machine.unknown, gap))

"""Explain why NVML shows no GPU, and what to do about it: no card, no driver, or a container that was given none."""

from pathlib import Path

from advisor.probe.live.host import in_container
from advisor.probe.live.nvml import NO_LIBRARY
from advisor.probe.live.sysfs import ROOT, folders, read

NVIDIA, AMD = "0x10de", "0x1002"  # PCI vendor numbers, https://pci-ids.ucw.cz
DISPLAY = "0x03"  # PCI class: display controllers, 3D controllers among them
ELSEWHERE = "to plan for another machine, give --machine"


def why_no_gpu(reason: str, root: Path = ROOT) -> str:
    """Put NVML's reason and what the PCI bus shows (`lspci -d 10de:`) into one sentence with a remedy."""
    nvidia = _displays(root, NVIDIA)
    if nvidia and reason == NO_LIBRARY:
        remedy = "start the container with `docker run --gpus all`" if in_container(root) else "install the driver"
        return f"{_count(nvidia, 'NVIDIA GPU')} on the PCI bus, but {reason}; {remedy}"
    if nvidia:
        return f"{_count(nvidia, 'NVIDIA GPU')} on the PCI bus, but {reason}"
    if amd := _displays(root, AMD):
        return f"{_count(amd, 'AMD GPU')} on the PCI bus: only NVIDIA GPUs are probed; {ELSEWHERE}"
    return f"no NVIDIA GPU on the PCI bus, and {reason}; {ELSEWHERE}"


def _displays(root: Path, vendor: str) -> list[str]:
    devices = folders(root / "sys/bus/pci/devices")
    return [d.name for d in devices if read(d / "vendor") == vendor and (read(d / "class") or "").startswith(DISPLAY)]


def _count(addresses: list[str], what: str) -> str:
    return f"{len(addresses)} {what}{'s' if len(addresses) > 1 else ''} ({', '.join(addresses)})"

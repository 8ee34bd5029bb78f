"""What the kernel's command line makes of the IOMMU. https://docs.kernel.org/admin-guide/kernel-parameters.html"""

from typing import Literal

Mode = Literal["off", "passthrough", "translating"]

_OFF = {"iommu=off", "intel_iommu=off", "amd_iommu=off"}
_PASSTHROUGH = {"iommu=pt", "iommu.passthrough=1", "iommu.passthrough=on", "iommu.passthrough=y"}
_ON = {"intel_iommu=on", "amd_iommu=on", "amd_iommu=force_enable", "iommu=force", "iommu=nopt", "iommu.passthrough=0"}


def iommu_mode(command_line: str) -> Mode | None:
    """Return what the command line asks for; None where it leaves that to the kernel."""
    words = {
        f"{name}={part}"
        for word in command_line.split()
        for name, _, value in [word.partition("=")]
        for part in value.split(",")
    }
    if words & _OFF:
        return "off"
    if words & _PASSTHROUGH:
        return "passthrough"
    return "translating" if words & _ON else None

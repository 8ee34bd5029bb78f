"""Read what steers peer-to-peer traffic of the GPUs over PCIe: the IOMMU, and Access Control Services above them."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from advisor.probe.iommu import Mode, iommu_mode
from advisor.probe.live.pci_tree import ADDRESS
from advisor.probe.live.sysfs import ROOT, folders, read

TYPES: dict[str, Mode] = {"identity": "passthrough", "DMA": "translating", "DMA-FQ": "translating"}
ROOT_ONLY = "the kernel shows it to root alone; `sudo lspci -vvv | grep ACSCtl`"

# PCI Express Base Specification, 7.7.8: the capability's number, the place of its control word, and the bits that
# redirect requests and completions of peers.
ACS, CONTROL, REDIRECT = 0x000D, 6, 0b1100
FIRST, WHOLE = 0x100, 4096  # extended capabilities: where they begin, and where a device's configuration ends
MOST = 64  # capabilities of a device


def read_iommu(gpus: Iterable[str], command_line: str | None, root: Path = ROOT) -> Mode | None:
    """Return how the IOMMU treats the GPUs at these addresses, of which the strictest counts.

    Kernels before 5.11 show no type to all; then the kernel's command line must tell.
    """
    asked = iommu_mode(command_line) if command_line else None
    groups = root / "sys/kernel/iommu_groups"
    if not groups.is_dir():
        return asked
    if not any(folders(groups)):
        return "off"
    devices = [root / "sys/bus/pci/devices" / address for address in gpus]
    found = {TYPES.get(read(device / "iommu_group/type") or "") for device in devices}
    found = found or {TYPES.get(read(group / "type") or "") for group in folders(groups)}
    return "translating" if "translating" in found else "passthrough" if "passthrough" in found else asked


def read_acs(gpus: Iterable[str], root: Path = ROOT) -> tuple[bool | None, str | None]:
    """Say whether a port above a GPU redirects peer-to-peer traffic to the root (`lspci -vvv`), or why that is open."""
    ports = dict.fromkeys(port for address in gpus for port in _above(root / "sys/bus/pci/devices" / address))
    if not ports:
        return None, None
    spaces = [_configuration(port) for port in ports]
    if any(_redirects(space) for space in spaces):
        return True, None
    return (False, None) if all(len(space) > FIRST for space in spaces) else (None, ROOT_ONLY)


def _above(device: Path) -> Iterator[Path]:
    for parent in device.resolve().parents:
        if not ADDRESS.fullmatch(parent.name):
            return
        yield parent


def _configuration(device: Path) -> bytes:
    """Read a device's configuration: all of it as root, else its first 64 bytes."""
    try:
        with (device / "config").open("rb") as file:
            return file.read(WHOLE)
    except OSError:
        return b""


def _redirects(space: bytes) -> bool:
    at = FIRST
    for _ in range(MOST):
        if at < FIRST or at + 8 > len(space):
            return False
        head = int.from_bytes(space[at : at + 4], "little")
        if head & 0xFFFF == ACS:
            return bool(int.from_bytes(space[at + CONTROL : at + CONTROL + 2], "little") & REDIRECT)
        at = head >> 20
    return False

"""Read the PCI tree above GPUs, network cards and NVSwitches from /sys/bus/pci/devices (`lspci -tv`).

As in NCCL's dump, a PCIe switch is one node, that of its upstream port: the port below it, and the root port above,
lead to one device only.
"""

import re
from collections.abc import Mapping
from itertools import chain, takewhile
from pathlib import Path
from typing import Literal

from advisor.probe.live.sysfs import ROOT, folders, numa_node, read, read_int
from advisor.rules.hardware import pcie_bandwidth
from advisor.rules.machine import PciNode
from advisor.rules.pci import link_generation

NVIDIA = "0x10de"
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
MOST_LANES = 32  # the kernel shows 255 where it does not know the width

Kind = Literal["gpu", "nvswitch", "nic", "bridge"]


def read_pci_tree(known: Mapping[str, Kind], root: Path = ROOT) -> tuple[PciNode, ...]:
    """List the devices at the known addresses, all NVIDIA GPUs and NVSwitches, and what is above them."""
    nodes: dict[str, PciNode] = {}
    for entry in folders(root / "sys/bus/pci/devices"):
        kind = known.get(entry.name) or _kind(entry)
        if kind is not None:
            nodes |= {node.id: node for node in _branch(entry.resolve(), kind)}
    return tuple(nodes.values())


def pci_device(folder: Path) -> str | None:
    """Return the PCI address of a device's folder; a virtio card sits one folder below its PCI device."""
    path = folder.resolve()
    return next((place.name for place in (path, path.parent) if ADDRESS.fullmatch(place.name)), None)


def _kind(entry: Path) -> Kind | None:
    if read(entry / "vendor") != NVIDIA:
        return None
    pci_class = read(entry / "class") or ""
    return "gpu" if pci_class.startswith("0x03") else "nvswitch" if pci_class.startswith("0x0680") else None


def _branch(device: Path, kind: Kind) -> list[PciNode]:
    """Make the nodes from the root complex down to a device."""
    places = list(takewhile(lambda place: ADDRESS.fullmatch(place.name), chain([device], device.parents)))
    top = places[-1].parent.name if places else ""
    nodes = [PciNode(id=top, kind="host-bridge", numa=numa_node(device))] if top.startswith("pci") else []
    kept = places[::2]
    for depth in reversed(range(len(kept))):
        place, port = kept[depth], places[2 * depth + 1 : 2 * depth + 2]
        nodes.append(
            PciNode(
                id=place.name,
                kind="bridge" if depth else kind,
                parent=nodes[-1].id if nodes else None,
                bandwidth=_bandwidth([place, *port]),
                numa=numa_node(place),
            )
        )
    return nodes


def _bandwidth(ends: list[Path]) -> float | None:
    """Return what a link can do by the slower of its ends, bytes per second in one direction; now it may be idle."""
    generations = [link_generation(read(end / "max_link_speed")) for end in ends]
    widths = [read_int(end / "max_link_width") for end in ends]
    generation = min((g for g in generations if g is not None), default=None)
    width = min((w for w in widths if w is not None and 0 < w <= MOST_LANES), default=None)
    return pcie_bandwidth(generation, width) if generation and width else None

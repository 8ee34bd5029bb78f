"""Find the file that describes a virtual machine's wiring to NCCL, which its vendor's image brings."""

import re
from collections.abc import Sequence
from pathlib import Path

from advisor.probe.live.sysfs import ROOT, read
from advisor.rules.network import TOPOLOGY_FILE
from advisor.rules.pci import pci_address

# Azure's images hold the files of several sizes, and link that of the machine's own below a folder.
PLACES = (
    TOPOLOGY_FILE.removeprefix("/"),
    "opt/microsoft/*/topo.xml",
    "opt/microsoft/*topo*.xml",
    "etc/nccl/*topo*.xml",
    "etc/nccl-topo*.xml",
    "etc/crusoe/nccl_topo/*.xml",
)
MOST_FILES = 100

_BUS_ID = re.compile(r"busid=[\"']([0-9a-fA-F:.]{7,16})[\"']")


def read_topology_file(gpus: Sequence[str], root: Path = ROOT) -> str | None:
    """Return the first file that lists all these GPUs' PCI addresses: one of another machine does not fit."""
    if len(gpus) < 2:
        return None
    for place in PLACES:
        for file in sorted(root.glob(place))[:MOST_FILES]:
            text = read(file) or ""
            if "<system" in text and set(gpus) <= {pci_address(bus_id) for bus_id in _BUS_ID.findall(text)}:
                return f"/{file.relative_to(root)}"
    return None

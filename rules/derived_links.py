"""Derive the links that no matrix prints, with the codes that `nvidia-smi topo -m` would give them.

Between GPUs, from the ends of their NVLinks; else, and to network cards, from the PCI tree; between AMD GPUs from the
weights of `rocm-smi --showtopo`. What a source prints is never changed.
"""

from collections.abc import Iterator
from itertools import chain, combinations, product
from typing import NamedTuple

from msgspec.structs import replace

from advisor.rules.format import ids
from advisor.rules.hardware import gpu_model
from advisor.rules.links import kind_of_code
from advisor.rules.machine import Gpu, Link, Machine, Nic, PciNode, Unknown
from advisor.rules.pci import is_hidden, pci_address, slot_of

HIDDEN = "there are NVLinks, but it is hidden where they lead; `nvidia-smi topo -m` on the host tells"
UNTOLD = "only PCI is told, and such GPUs have NVLinks as a rule; `nvidia-smi topo -m` tells"
UNNAMED = "only PCI is told, and not which GPUs these are; add --gpu NAME, or `nvidia-smi topo -m`"
NOT_GIVEN = "no source tells them; add the text of `nvidia-smi topo -m` with another --machine"

# What rocm-smi prints as weight, the sum of the kernel's (amdkfd/kfd_crat.h): 15 for a hop over Infinity Fabric; over
# PCIe 20 to a CPU, so 40 between GPUs of one, and 20 + 32 + 20 = 72 across two sockets.
XGMI_WEIGHT = 15
LEAST_PCIE_WEIGHT = 20


class Ends(NamedTuple):
    """Where the active NVLinks of one GPU lead."""

    gpus: tuple[str, ...]  # PCI addresses of GPUs, one entry a link
    switch: int
    hidden: int


def with_derived_links(machine: Machine) -> Machine:
    """Add a link for each two GPUs, and each GPU and network card, that have none and of which enough is known."""
    known = {frozenset((link.a, link.b)) for link in machine.links}
    weights = {frozenset((d.a, d.b)): d.weight for d in machine.distances if d.weight is not None}
    tree = {node.id: node for node in machine.pci}
    found: list[Link] = []
    gaps: dict[str, list[str]] = {HIDDEN: [], UNTOLD: [], UNNAMED: []}  # GPUs by reason
    for a, b in _pairs(machine):
        pair = frozenset((a.id, b.id))
        if pair in known:
            continue
        count = nvlinks_between(a, b) if isinstance(b, Gpu) else 0
        code = f"NV{count}" if count else pcie_code(tree, a, b) or _code_of_weight(weights.get(pair))
        kind = kind_of_code(code or "")
        if count is None:
            gaps[HIDDEN] += [a.id, b.id]
        elif code is None or kind is None:
            continue
        elif isinstance(b, Gpu) and not count and pair not in weights and (why := _why_untold(a, b)):
            gaps[why] += [a.id, b.id]
        else:
            found.append(Link(a=a.id, b=b.id, code=code, kind=kind))
    links = machine.links + tuple(found)
    reasons = [Unknown(what=f"links between {_list(gpus)}", why=why) for why, gpus in gaps.items() if gpus]
    if len(machine.gpus) > 1 and not links and not reasons and not any("link" in gap.what for gap in machine.unknown):
        reasons.append(Unknown(what="links", why=NOT_GIVEN))
    return replace(machine, links=links, unknown=tuple(dict.fromkeys((*machine.unknown, *reasons))))


def nvlinks_between(a: Gpu, b: Gpu) -> int | None:
    """Count the NVLinks that join two GPUs, through a switch the fewer of both; None where their ends are hidden.

    0 also where nothing is known of the GPUs' NVLinks.
    """
    ends_a, ends_b = _ends(a), _ends(b)
    direct = max(ends_a.gpus.count(_address(b)), ends_b.gpus.count(_address(a)))
    count = direct or min(ends_a.switch, ends_b.switch)
    return None if count == 0 and ends_a.hidden and ends_b.hidden else count


def pcie_code(tree: dict[str, PciNode], a: Gpu | Nic, b: Gpu | Nic) -> str | None:
    """Name the PCIe path between two devices; None where the tree, by id, does not hold both.

    Below one switch PIX, over several PXB, below one host bridge PHB, in one NUMA node NODE, else SYS.
    """
    node_a, node_b = tree.get(_address(a)), tree.get(_address(b))
    if node_a is None or node_b is None:
        return None
    if slot_of(node_a.id) == slot_of(node_b.id):
        return "PIX"
    above_a, above_b = _above(tree, node_a), _above(tree, node_b)
    common = next((node for node in above_a if node in above_b), None)
    if common is None:
        return _code_between_bridges(_numa(node_a, a), _numa(node_b, b))
    if tree[common].kind == "host-bridge":
        return "PHB"
    return "PIX" if common == above_a[0] == above_b[0] else "PXB"


def _pairs(machine: Machine) -> Iterator[tuple[Gpu, Gpu | Nic]]:
    return chain(combinations(machine.gpus, 2), product(machine.gpus, machine.nics))


def _ends(gpu: Gpu) -> Ends:
    gpus: list[str] = []
    switch = hidden = 0
    for link in gpu.nvlinks or ():
        if link.active is False or link.remote_kind == "cpu":
            continue
        if link.remote_kind == "switch":
            switch += 1
        elif link.remote is None or is_hidden(link.remote) or pci_address(link.remote) == _address(gpu):
            hidden += 1
        else:
            gpus.append(pci_address(link.remote))
    return Ends(tuple(gpus), switch, hidden)


def _address(device: Gpu | Nic) -> str:
    return pci_address(device.bus_id) if device.bus_id else f"unknown address of {device.id}"


def _above(tree: dict[str, PciNode], node: PciNode) -> list[str]:
    """List the nodes above one, nearest first."""
    found: list[str] = []
    parent = node.parent
    while parent in tree and parent not in found:
        found.append(parent)
        parent = tree[parent].parent
    return found


def _numa(node: PciNode, device: Gpu | Nic) -> int | None:
    if node.numa is not None:
        return node.numa
    return device.numa if isinstance(device.numa, int) else None


def _code_between_bridges(numa_a: int | None, numa_b: int | None) -> str | None:
    if numa_a is None or numa_b is None:
        return None
    return "NODE" if numa_a == numa_b else "SYS"


def _code_of_weight(weight: int | None) -> str | None:
    if weight == XGMI_WEIGHT:
        return "XGMI"
    return "PCIE" if weight is not None and weight >= LEAST_PCIE_WEIGHT else None


def _why_untold(a: Gpu, b: Gpu) -> str | None:
    """Say why a PCIe path may not be the whole truth: both GPUs may have NVLinks of which no source has told anything.

    Vendors' files for NCCL_TOPO_FILE hold PCI alone, and name no GPU.
    """
    if not (_may_have_nvlinks(a) and _may_have_nvlinks(b)):
        return None
    return UNNAMED if a.name is None or b.name is None else UNTOLD


def _may_have_nvlinks(gpu: Gpu) -> bool:
    model = gpu_model(gpu.name) if gpu.name else None
    return gpu.nvlinks is None and (gpu.name is None or (model is not None and model.nvlink_links > 0))


def _list(gpus: list[str]) -> str:
    return ids(list(dict.fromkeys(gpus)))

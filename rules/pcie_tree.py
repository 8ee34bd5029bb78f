"""The PCIe tree above GPUs and NICs: switches, host bridges, NUMA nodes, and the links between the latter.

From the PCI devices where a source lists those of all GPUs, else inferred from the codes of `nvidia-smi topo -m`:
devices that see each other as PIX hang on one switch, as PHB on one host bridge, and so on.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Literal, NamedTuple

from msgspec.structs import replace

from advisor.rules.hardware import assumed_inter_socket_bandwidth, inter_socket_bandwidth
from advisor.rules.links import attachment
from advisor.rules.machine import Gpu, Link, LinkKind, Machine, Nic, PciNode, Source, Value
from advisor.rules.pci import pci_address, slot_of
from advisor.rules.topology import components

TreeKind = Literal["gpu", "nic", "pcie-switch", "pcie-switches", "host-bridge", "numa-node"]

_LEVELS: tuple[tuple[LinkKind, TreeKind, str], ...] = (
    ("pcie-switch", "pcie-switch", "PCIe switch"),
    ("pcie-switches", "pcie-switches", "PCIe switches"),
    ("host-bridge", "host-bridge", "host bridge"),
    ("numa-node", "numa-node", "NUMA node"),
)
_PCIE: tuple[LinkKind, ...] = (*(kind for kind, _, _ in _LEVELS), "inter-socket")


class Node(Value, frozen=True, kw_only=True):
    """A device, or what lies between devices."""

    id: str
    kind: TreeKind
    label: str
    parent: str | None = None
    bandwidth: float | None = None  # bytes per second of the link to the parent, one direction
    source: Source | None = None  # of the bandwidth


class Between(NamedTuple):
    """A link between two tops of the tree: NUMA nodes, or devices of which no NUMA node is known."""

    a: str
    b: str
    bandwidth: float | None
    source: Source | None


class Tree(Value, frozen=True, kw_only=True):
    nodes: tuple[Node, ...]  # children before their parents
    between: tuple[Between, ...]

    def below(self) -> dict[str, frozenset[str]]:
        """Return the GPUs and NICs below each node; a device is below itself."""
        found: dict[str, frozenset[str]] = {}
        for node in self.nodes:
            inside = found.setdefault(node.id, frozenset()) | (
                {node.id} if node.kind in ("gpu", "nic") else frozenset()
            )
            found[node.id] = inside
            if node.parent is not None:
                found[node.parent] = found.get(node.parent, frozenset()) | inside
        return found


def pcie_tree(machine: Machine) -> Tree:
    """Build the tree of one host; measured links stand in for what a data sheet says of the wires they cross."""
    addresses = _addresses(machine)
    if machine.gpus and all(gpu.id in addresses for gpu in machine.gpus):
        nodes = _from_pci(machine, addresses)
    else:
        nodes = _from_codes(machine)
    tree = Tree(nodes=nodes, between=())
    below = tree.below()
    measured = [link for link in machine.links if link.bandwidth_source == "measured" and link.kind in _PCIE]
    nodes = tuple(_measured(node, measured, below[node.id]) for node in nodes) if measured else nodes
    return Tree(nodes=nodes, between=tuple(_between(machine, nodes, below)))


def _measured(node: Node, measured: Sequence[Link], below: frozenset[str]) -> Node:
    crossing = [k.bandwidth for k in measured if (k.a in below) != (k.b in below) and k.bandwidth is not None]
    if not crossing or node.parent is None or node.kind in ("host-bridge", "numa-node"):
        return node
    return replace(node, bandwidth=max(crossing), source="measured")


def _between(machine: Machine, nodes: Sequence[Node], below: dict[str, frozenset[str]]) -> Iterable[Between]:
    tops = [node for node in nodes if node.parent is None]
    top_of = {device: node.id for node in tops for device in below[node.id]}
    found: dict[frozenset[str], Between] = {}
    for link in machine.links:
        a, b = top_of.get(link.a), top_of.get(link.b)
        if link.kind != "inter-socket" or a is None or b is None or a == b:
            continue
        pair = Between(a, b, link.bandwidth, link.bandwidth_source)
        there = found.get(frozenset((a, b)))
        found[frozenset((a, b))] = pair if there is None else max(there, pair, key=_weight)
    host = machine.host
    domains = [node.id for node in tops if node.kind == "numa-node"]
    known = inter_socket_bandwidth(host.cpu or host.cpu_vendor, host.cpu_family, host.cpu_model_number)
    rate = known or assumed_inter_socket_bandwidth()
    for a, b in combinations(domains, 2):
        found.setdefault(frozenset((a, b)), Between(a, b, rate, "data sheet" if known else "assumed"))
    return found.values()


def _weight(link: Between) -> tuple[bool, float]:
    return link.source == "measured", link.bandwidth or 0.0


def _from_codes(machine: Machine) -> tuple[Node, ...]:
    """Build the tree from its leaves: at each level, what the level's links join gets one common node above it."""
    devices = _devices(machine)
    nodes = {device.id: _leaf(device) for device in devices}
    numa = {device.id: device.numa for device in devices}
    top = {device.id: device.id for device in devices}
    pairs: list[tuple[str, str]] = []
    for link_kind, kind, label in _LEVELS:
        pairs += [(k.a, k.b) for k in machine.links if k.kind == link_kind and k.a in top and k.b in top]
        domains = kind == "numa-node"
        if domains:
            pairs += [(a.id, b.id) for a, b in combinations(devices, 2) if _domain([a.numa, b.numa]) is not None]
        joined = [
            members
            for members in components(list(top), pairs)
            if len({top[member] for member in members}) > 1 or (domains and _domain([numa[members[0]]]) is not None)
        ]
        for number, members in enumerate(joined):
            domain = _domain([numa[member] for member in members]) if domains else None
            node = Node(id=f"{kind} {number}", kind=kind, label=label if domain is None else f"{label} {domain}")
            _put_under(nodes, dict.fromkeys(top[member] for member in members), node)
            top |= dict.fromkeys(members, node.id)
    return tuple(nodes.values())


def _put_under(nodes: dict[str, Node], children: Iterable[str], parent: Node) -> None:
    """Hang nodes under a new one. A switch's link upwards is taken to be as wide as the widest below it."""
    widest = 0.0
    for child in children:
        node = nodes[child]
        nodes[child] = replace(node, parent=parent.id)
        widest = max(widest, node.bandwidth or 0.0)
    switch = parent.kind in ("pcie-switch", "pcie-switches") and widest > 0
    nodes[parent.id] = replace(parent, bandwidth=widest, source="assumed") if switch else parent


def _leaf(device: Gpu | Nic) -> Node:
    bandwidth = attachment(device) if isinstance(device, Gpu) else device.bandwidth
    kind: TreeKind = "gpu" if isinstance(device, Gpu) else "nic"
    source: Source | None = None if bandwidth is None else "data sheet"
    return Node(id=device.id, kind=kind, label=device.id, bandwidth=bandwidth, source=source)


def _domain(numa: Sequence[int | tuple[int, ...] | None]) -> int | None:
    """Return the one NUMA node that all name; None where they differ or do not know."""
    first = numa[0] if numa else None
    return first if isinstance(first, int) and first >= 0 and set(numa) == {first} else None


def _addresses(machine: Machine) -> dict[str, str]:
    """Map the ids of GPUs and NICs to their PCI addresses, as far as the tree lists them."""
    listed = {node.id for node in machine.pci}
    found = {device.id: pci_address(device.bus_id) for device in _devices(machine) if device.bus_id}
    return {device: address for device, address in found.items() if address in listed}


def _devices(machine: Machine) -> Sequence[Gpu | Nic]:
    return (*machine.gpus, *machine.nics)


def _from_pci(machine: Machine, addresses: dict[str, str]) -> tuple[Node, ...]:
    """Take the devices and, above them, host bridges and those bridges below which paths part: PCIe switches."""
    pci = {node.id: node for node in machine.pci}
    chains = {device: _chain(pci, address) for device, address in addresses.items()}
    children: dict[str, set[str]] = {}
    for leaf, *bridges in chains.values():
        below = slot_of(leaf.id)  # the functions of one card are one child
        for bridge in bridges:
            children.setdefault(bridge.id, set()).add(below)
            below = bridge.id
    kept = {i for i, inside in children.items() if len(inside) > 1 or pci[i].kind == "host-bridge"}
    nodes = {device.id: _leaf(device) for device in _devices(machine)}
    for child, chain in chains.items():
        rate = chain[0].bandwidth
        for bridge in chain[1:]:
            if bridge.id in kept:
                nodes.setdefault(bridge.id, _bridge(bridge))
                nodes[child] = replace(_with_rate(nodes[child], rate), parent=bridge.id)
                child, rate = bridge.id, bridge.bandwidth  # noqa: PLW2901
            else:
                rate = min((r for r in (rate, bridge.bandwidth) if r is not None), default=None)
    for device in _devices(machine):
        _put_in_domain(nodes, device, chains.get(device.id, []))
    return _children_first(nodes)


def _chain(pci: dict[str, PciNode], address: str) -> list[PciNode]:
    """Return a device and all above it; a loop, which no machine has, ends it."""
    chain = [pci[address]]
    while (parent := chain[-1].parent) in pci and pci[parent] not in chain:
        chain.append(pci[parent])
    return chain


def _bridge(node: PciNode) -> Node:
    if node.kind == "host-bridge":
        return Node(id=node.id, kind="host-bridge", label="host bridge")
    return Node(id=node.id, kind="pcie-switch", label="PCIe switch")


def _with_rate(node: Node, rate: float | None) -> Node:
    return node if rate is None else replace(node, bandwidth=rate, source="probed")


def _put_in_domain(nodes: dict[str, Node], device: Gpu | Nic, chain: Sequence[PciNode]) -> None:
    """Hang what lies above a device into its NUMA node, as the host bridge or else the device names it."""
    top = nodes[device.id]
    while top.parent is not None:
        top = nodes[top.parent]
    known = [numa for numa in (*(node.numa for node in reversed(chain)), device.numa) if _domain([numa]) is not None]
    if known and top.kind != "numa-node":
        domain = Node(id=f"numa-node {known[0]}", kind="numa-node", label=f"NUMA node {known[0]}")
        nodes.setdefault(domain.id, domain)
        nodes[top.id] = replace(top, parent=domain.id)


def _children_first(nodes: dict[str, Node]) -> tuple[Node, ...]:
    depth: dict[str, int] = {}
    for node in nodes.values():
        steps, above = 0, node.parent
        while above is not None:
            steps, above = steps + 1, nodes[above].parent
        depth[node.id] = steps
    return tuple(sorted(nodes.values(), key=lambda node: -depth[node.id]))

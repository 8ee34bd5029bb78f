"""The machine as a graph: which GPUs belong together, in which order a ring visits them, what joins two devices.

Links are compared by bandwidth and then by kind where every bandwidth is known, else by kind and then by their number.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from advisor.rules.hardware import gpu_model
from advisor.rules.links import nvlink_count
from advisor.rules.machine import Gpu, Link, LinkKind, Machine, Nic
from advisor.rules.rings import EXACT, Cost, Ring, hops, ring_order, steep_cost

if TYPE_CHECKING:
    import networkx as nx

# Best first. A PCIe switch lets GPUs talk directly; from the host bridge on, data usually crosses host memory.
KINDS: tuple[LinkKind, ...] = (
    "nvlink",
    "xgmi",
    "c2c",
    "pcie-switch",
    "pcie-switches",
    "host-bridge",
    "numa-node",
    "inter-socket",
    "host-memory",
    "network",
)
MOST_NVLINKS = 18  # of one GPU, Hopper and Blackwell; no GPU has more

_PCIE_LEVELS: tuple[LinkKind, ...] = ("pcie-switch", "pcie-switches", "host-bridge", "numa-node")


def islands(machine: Machine) -> tuple[tuple[str, ...], ...]:
    """Group the GPUs that the best kind of link of this machine connects; a lone GPU is an island of one."""
    links = _gpu_links(machine).values()
    best = min((link.kind for link in links), key=KINDS.index, default=None)
    return _components([gpu.id for gpu in machine.gpus], ((k.a, k.b) for k in links if k.kind == best))


def best_ring(machine: Machine, gpus: Sequence[str]) -> Ring:
    """Order the GPUs so that the ring's slowest hop is as fast as can be, then so that it has the fewest slow hops."""
    order = ring_order(gpus, _hop_cost(machine))
    slowest = _slowest_hop(machine, order)
    return Ring(order=order, bandwidth=slowest.bandwidth if slowest else None)


def slowest_link(machine: Machine, gpus: Sequence[str]) -> Link | None:
    """Return the slowest hop of the best ring; None for one GPU, and where the source lost the link of a hop."""
    return _slowest_hop(machine, ring_order(gpus, _hop_cost(machine)))


def widest_path(machine: Machine, a: str, b: str) -> tuple[str, ...]:
    """Return the shortest of the paths over GPUs whose slowest link is fastest; () where no links join the two."""
    import networkx as nx

    cost = _hop_cost(machine)
    links = _gpu_links(machine).values()
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from((a, b))
    for limit in sorted({cost(link.a, link.b) for link in links}):
        graph.add_edges_from((link.a, link.b) for link in links if cost(link.a, link.b) == limit)
        if nx.has_path(graph, a, b):
            return tuple(nx.shortest_path(graph, a, b))
    return ()


def gpu_groups(machine: Machine) -> tuple[tuple[str, ...], ...]:
    """List the subsets worth planning for: all, equal GPUs, one of each shape of island, the best 1, 2, 4, 8, ..."""
    everything = tuple(gpu.id for gpu in machine.gpus)
    groups = [everything, *_equal_gpus(machine), *_distinct_islands(machine)]
    size = 1
    while size < len(everything):
        groups.append(_best_subset(machine, size))
        size *= 2
    return tuple(dict.fromkeys(group for group in groups if group))


def has_nvswitch(machine: Machine) -> bool:
    """Say whether NVLink runs through switches: one GPU's counts, summed over its peers, exceed the links it has.

    Through a switch, NV18 to each of 7 peers are the same links; in a mesh (DGX-1, 4x A100 NV4) each peer has its own.
    """
    counts = dict.fromkeys((gpu.id for gpu in machine.gpus), 0)
    for link in _gpu_links(machine).values():
        counts[link.a] += nvlink_count(link.code)
        counts[link.b] += nvlink_count(link.code)
    return any(counts[gpu.id] > _nvlinks(gpu) for gpu in machine.gpus)


def graph_of(machine: Machine) -> "nx.Graph[str]":
    """Build the networkx graph of one host: GPUs and NICs, and the switches, host bridges and NUMA nodes between them.

    Nodes have a `kind`, edges a `kind` and a `bandwidth` (bytes per second, one direction, or None). PCIe nodes are
    inferred from the codes: devices that see each other as PIX hang on one switch, as PHB on one host bridge, ...
    """
    import networkx as nx

    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from((gpu.id for gpu in machine.gpus), kind="gpu")
    graph.add_nodes_from((nic.id for nic in machine.nics), kind="nic")
    switched = has_nvswitch(machine)
    links = [link for link in machine.links if link.a in graph and link.b in graph]
    for link in links:
        if link.kind == "nvlink" and switched:
            graph.add_node("NVSwitch", kind="nvswitch")
            for gpu in (link.a, link.b):
                graph.add_edge(gpu, "NVSwitch", kind=link.kind, bandwidth=link.bandwidth)
        elif link.kind in ("nvlink", "xgmi", "c2c", "host-memory"):
            graph.add_edge(link.a, link.b, kind=link.kind, bandwidth=link.bandwidth)
    _add_pcie(graph, links, [*machine.gpus, *machine.nics])
    return graph


def _add_pcie(graph: "nx.Graph[str]", links: Sequence[Link], devices: Sequence[Gpu | Nic]) -> None:
    """Add the PCIe tree from its leaves: at each level, what the level's links join gets one common node above it."""
    top = {device.id: device.id for device in devices}
    joined: list[Link] = []
    for level in _PCIE_LEVELS:
        found = [link for link in links if link.kind == level]
        joined += found
        pairs = [(link.a, link.b) for link in joined]
        if level == "numa-node":
            pairs += [(a.id, b.id) for a, b in combinations(devices, 2) if isinstance(a.numa, int) and a.numa == b.numa]
        apart = [c for c in _components(list(top), pairs) if len({top[member] for member in c}) > 1]
        for number, members in enumerate(apart):
            tops = dict.fromkeys(top[member] for member in members)
            node = f"{level} {number}"
            graph.add_node(node, kind=level)
            for below in tops:
                graph.add_edge(below, node, kind=level, bandwidth=_widest(found, members))
            top |= dict.fromkeys(members, node)
    for link in links:
        if link.kind == "inter-socket" and top[link.a] != top[link.b]:
            graph.add_edge(top[link.a], top[link.b], kind="inter-socket", bandwidth=link.bandwidth)


def _widest(links: Iterable[Link], members: Sequence[str]) -> float | None:
    return max(
        (k.bandwidth for k in links if k.bandwidth is not None and k.a in members and k.b in members), default=None
    )


def _gpu_links(machine: Machine) -> dict[frozenset[str], Link]:
    gpus = {gpu.id for gpu in machine.gpus}
    return {frozenset((k.a, k.b)): k for k in machine.links if k.a in gpus and k.b in gpus}


def _nvlinks(gpu: Gpu) -> int:
    model = gpu_model(gpu.name) if gpu.name else None
    return (model.nvlink_links if model else 0) or MOST_NVLINKS


def _hop_cost(machine: Machine) -> Cost:
    links = _gpu_links(machine)
    known = all(link.bandwidth is not None for link in links.values())

    def grade(link: Link) -> tuple[float, float]:
        kind = -KINDS.index(link.kind)
        return (link.bandwidth or 0.0, kind) if known else (kind, nvlink_count(link.code))

    return steep_cost({pair: grade(link) for pair, link in links.items()})


def _slowest_hop(machine: Machine, order: Sequence[str]) -> Link | None:
    cost, links = _hop_cost(machine), _gpu_links(machine)
    slowest = max(hops(order), key=lambda hop: cost(*hop), default=None)
    return links.get(frozenset(slowest)) if slowest else None


def _equal_gpus(machine: Machine) -> list[tuple[str, ...]]:
    kinds: dict[tuple[str | None, int | None], list[str]] = {}
    for gpu in machine.gpus:
        kinds.setdefault((gpu.name, gpu.memory), []).append(gpu.id)
    return [tuple(ids) for ids in kinds.values()]


def _distinct_islands(machine: Machine) -> list[tuple[str, ...]]:
    """Keep the first of the islands that have the same GPUs and the same costs between them."""
    cost = _hop_cost(machine)
    kind = {gpu.id: (str(gpu.name), gpu.memory or 0) for gpu in machine.gpus}
    shapes: dict[Any, tuple[str, ...]] = {}
    for island in islands(machine):
        shape = (tuple(sorted(kind[i] for i in island)), tuple(sorted(cost(a, b) for a, b in combinations(island, 2))))
        shapes.setdefault(shape, island)
    return list(shapes.values())


def _best_subset(machine: Machine, size: int) -> tuple[str, ...]:
    """Choose the GPUs with the best ring among them; of equal ones those with more memory, then the first."""
    cost = _hop_cost(machine)
    memory = {gpu.id: gpu.memory or 0 for gpu in machine.gpus}
    ids = list(memory)
    subsets = combinations(ids, size) if len(ids) <= EXACT else (_grown(seed, ids, size, cost) for seed in ids)

    def key(subset: tuple[str, ...]) -> tuple[int, int]:
        ring = sum(cost(a, b) for a, b in hops(ring_order(subset, cost)))
        return ring, -min(memory[gpu] for gpu in subset)

    return min(subsets, key=key)


def _grown(seed: str, ids: Sequence[str], size: int, cost: Cost) -> tuple[str, ...]:
    """Add to the seed, one by one, the GPU that is nearest to all chosen so far."""
    chosen = [seed]
    while len(chosen) < size:
        left = (gpu for gpu in ids if gpu not in chosen)
        chosen.append(min(left, key=lambda gpu: sum(cost(gpu, other) for other in chosen)))
    return tuple(gpu for gpu in ids if gpu in chosen)


def _components(nodes: Sequence[str], pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, ...], ...]:
    """Group nodes that the pairs connect, in the order of the nodes. (networkx would cost 80 ms of start-up here.)"""
    group = {node: [node] for node in nodes}
    for a, b in pairs:
        if group[a] is not group[b]:
            merged = group[a] + group[b]
            group |= dict.fromkeys(merged, merged)
    position = {node: i for i, node in enumerate(nodes)}
    found = {id(members): tuple(sorted(members, key=position.__getitem__)) for members in group.values()}
    return tuple(sorted(found.values(), key=lambda members: position[members[0]]))

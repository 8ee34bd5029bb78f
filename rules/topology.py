"""What links make of GPUs: which belong together at each level, in which order a ring visits them.

Links are compared by bandwidth and then by kind where every bandwidth is known, else by kind and then by their number.
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations

from advisor.rules.hardware import gpu_model
from advisor.rules.links import nvlink_count
from advisor.rules.machine import Gpu, Link, LinkKind, Machine, Value
from advisor.rules.ring_search import EXACT
from advisor.rules.rings import Cost, Ring, hops, ring_order, steep_cost

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
NOISE = 0.05  # links whose bandwidths differ by less are equal: measured again, they may change places


class Level(Value, frozen=True, kw_only=True):
    """Which GPUs belong together when links of this kind and all better ones count."""

    kind: LinkKind
    islands: tuple[tuple[str, ...], ...]


def islands(machine: Machine) -> tuple[tuple[str, ...], ...]:
    """Group the GPUs that the best kind of link of this machine connects; a lone GPU is an island of one."""
    links = gpu_links(machine).values()
    best = min((link.kind for link in links), key=KINDS.index, default=None)
    return components([gpu.id for gpu in machine.gpus], ((k.a, k.b) for k in links if k.kind == best))


def island_levels(machine: Machine) -> tuple[Level, ...]:
    """Group the GPUs by ever slower kinds of links, from NVLink on; kinds that join no islands are left out."""
    gpus = [gpu.id for gpu in machine.gpus]
    links = gpu_links(machine).values()
    levels: list[Level] = []
    for kind in KINDS:
        pairs = [(link.a, link.b) for link in links if KINDS.index(link.kind) <= KINDS.index(kind)]
        joined = components(gpus, pairs)
        if len(joined) < (len(levels[-1].islands) if levels else len(gpus)):
            levels.append(Level(kind=kind, islands=joined))
    return tuple(levels)


def best_ring(machine: Machine, gpus: Sequence[str]) -> Ring:
    """Order the GPUs so that the ring's slowest hop is as fast as can be, then so that it has the fewest slow hops."""
    order = ring_order(gpus, hop_cost(machine))
    slowest = _slowest_hop(machine, order)
    return Ring(order=order, bandwidth=slowest.bandwidth if slowest else None)


def slowest_link(machine: Machine, gpus: Sequence[str], exact: int = EXACT) -> Link | None:
    """Return the slowest hop of the best ring; None for one GPU, and where the source lost the link of a hop."""
    return _slowest_hop(machine, ring_order(gpus, hop_cost(machine), exact))


def has_nvswitch(machine: Machine) -> bool:
    """Say whether NVLink runs through switches: one GPU's counts, summed over its peers, exceed the links it has.

    Through a switch, NV18 to each of 7 peers are the same links; in a mesh (DGX-1, 4x A100 NV4) each peer has its own.
    """
    counts = dict.fromkeys((gpu.id for gpu in machine.gpus), 0)
    for link in gpu_links(machine).values():
        counts[link.a] += nvlink_count(link.code)
        counts[link.b] += nvlink_count(link.code)
    return any(counts[gpu.id] > _nvlinks(gpu) for gpu in machine.gpus)


def hop_cost(machine: Machine) -> Cost:
    """Price the hops of a ring by their links, so that the cheapest ring has the best slowest hop."""
    links = gpu_links(machine)
    speeds = [link.bandwidth for link in links.values() if link.bandwidth is not None]
    grades = _grades(speeds) if len(speeds) == len(links) else None

    def grade(link: Link) -> tuple[int, int]:
        kind = -KINDS.index(link.kind)
        if grades is None or link.bandwidth is None:
            return kind, nvlink_count(link.code)
        return grades[link.bandwidth], kind

    return steep_cost({pair: grade(link) for pair, link in links.items()})


def shape_of(machine: Machine, gpus: Sequence[str]) -> Hashable:
    """Describe a group without its names: groups of one shape are the same GPUs, joined in the same way.

    Members are compared in their order, so that a group in another order may have another shape, never the reverse.
    """
    links = gpu_links(machine)
    members = [machine.gpu(gpu) for gpu in gpus]
    numbers = {gpu.numa: number for number, gpu in reversed(list(enumerate(members)))}
    looks = [(g.name, g.memory, g.compute_capability, g.pcie, numbers[g.numa], g.numa is None) for g in members]
    joined = [links.get(frozenset(pair)) for pair in combinations(gpus, 2)]
    codes = [(k.code, k.kind, k.bandwidth, k.bandwidth_source) if k else None for k in joined]
    return tuple(looks), tuple(codes)


def gpu_links(machine: Machine) -> dict[frozenset[str], Link]:
    """Return the links between GPUs by their ends."""
    gpus = {gpu.id for gpu in machine.gpus}
    return {frozenset((k.a, k.b)): k for k in machine.links if k.a in gpus and k.b in gpus}


def _grades(speeds: Iterable[float]) -> dict[float, int]:
    """Grade speeds, the best 0: one is as good as the fastest that it comes within `NOISE` of."""
    grades: dict[float, int] = {}
    best, grade = 0.0, 1
    for speed in sorted(set(speeds), reverse=True):
        if not grades or speed < (1 - NOISE) * best:
            best, grade = speed, grade - 1
        grades[speed] = grade
    return grades


def _nvlinks(gpu: Gpu) -> int:
    model = gpu_model(gpu.name) if gpu.name else None
    return (model.nvlink_links if model else 0) or MOST_NVLINKS


def _slowest_hop(machine: Machine, order: Sequence[str]) -> Link | None:
    cost, links = hop_cost(machine), gpu_links(machine)

    def slowness(hop: tuple[str, str]) -> tuple[int, float]:
        link = links.get(frozenset(hop))
        return cost(*hop), -(link.bandwidth or 0.0) if link else 0.0

    slowest = max(hops(order), key=slowness, default=None)
    return links.get(frozenset(slowest)) if slowest else None


def components(nodes: Sequence[str], pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, ...], ...]:
    """Group nodes that the pairs connect, in the order of the nodes. (networkx would cost 80 ms of start-up here.)"""
    group = {node: [node] for node in nodes}
    for a, b in pairs:
        if group[a] is not group[b]:
            merged = group[a] + group[b]
            group |= dict.fromkeys(merged, merged)
    position = {node: i for i, node in enumerate(nodes)}
    found = {id(members): tuple(sorted(members, key=position.__getitem__)) for members in group.values()}
    return tuple(sorted(found.values(), key=lambda members: position[members[0]]))

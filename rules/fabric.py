"""What a group of GPUs can move: islands, the ring, and a latency and bandwidth for each collective.

The links of a machine must have their bandwidths (`links.with_link_bandwidths`).

Predicted against measured, two H200 with PCIe 5 x16 on an Intel host, milliseconds of one operation:

    path                    operation   size     predicted  measured
    18 NVLinks              all-reduce   64 MiB       0.25      0.26
                            all-reduce    1 GiB       3.3       3.3
                            all-gather  256 MiB       0.52      0.56
    host memory (P2P off)   all-reduce   64 MiB       2.5       2.5
                            all-gather   64 MiB       1.5       1.4
    TCP (SHM off as well)   all-reduce   64 MiB      21        20-23

Against what others published for messages of 64 MiB and more on 28 kinds of machine the median error of bus bandwidth
is 5 %, 8 % on those that no constant was chosen on: docs/machines.md.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import combinations
from math import inf
from typing import Literal, NamedTuple

from msgspec import field
from msgspec.structs import replace

from advisor.rules.asymmetry import Asymmetry, asymmetries
from advisor.rules.contention import NearNics, Shared, nearest_nics, shared_links
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Link, Machine, Value
from advisor.rules.nccl import Group, Op, estimate, generation_of, nvls_graph, ring_graph
from advisor.rules.rings import Ring, hops, ring_order, steep_cost
from advisor.rules.subsets import Subset, subsets_of
from advisor.rules.topology import Level, best_ring, has_nvswitch, island_levels, islands, shape_of, slowest_link
from advisor.rules.transport import capability_of, dumped_ring_speed, hop_speed, mesh_speed, network_speed, ring_share

__all__ = ["Collective", "Fabric", "Op", "Ring", "collective_seconds", "collectives_of", "fabric_of"]

OPS: tuple[Op, ...] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")

# A collective's bandwidth is that of the line through NCCL's time for an empty message and for this many bytes: between
# a DDP bucket (25 MiB) and the blocks that FSDP gathers. Its time follows NCCL's through these sizes.
REFERENCE_BYTES = 128 * 1024**2
CURVE_BYTES = tuple(2**20 * 4**power for power in range(8))  # 1 MiB to 16 GiB

LAUNCH = 30e-6  # seconds to launch a collective from Python: small ones take 35-50 us on any path, 8 of them NCCL's own
LOCAL_COPY = 0.15  # copying a rank's own share, against receiving one: gathers on two H200 are 8-20 % below all-reduce

# gloo between processes of one host: small operations take 0.3-1 ms, and gathers and scatters move a quarter of what an
# all-reduce does (torch 2.13, two ranks on two cores).
GLOO_LATENCY = 5e-4
GLOO_GATHER = 0.25

EVERY_CUT = 8  # GPUs of a mesh up to which all cuts through it are compared
MOST_COSTED = 8  # GPUs of a group that has its own costs; of larger ones only powers of two, as jobs use them, and all


class Collective(Value, frozen=True, kw_only=True):
    """Cost of one collective: seconds = latency + factor(op, ranks) x bytes / bus_bandwidth.

    A modelled one has a curve as well, which `collective_seconds` follows: NCCL changes its algorithm with the size.
    """

    latency: float  # seconds
    bus_bandwidth: float  # bytes per second, as nccl-tests defines it
    source: Literal["model", "measured"] = "model"
    curve: tuple[tuple[float, float], ...] = ()  # (bytes, seconds), ascending


class GroupCost(Value, frozen=True, kw_only=True):
    """What collectives cost a group of GPUs of one host while no other group runs."""

    gpus: tuple[str, ...]
    collectives: dict[Op, Collective]


class Fabric(Value, frozen=True, kw_only=True):
    """The links of a machine, seen as a training run sees them."""

    islands: tuple[tuple[str, ...], ...]
    levels: tuple[Level, ...] = ()  # islands by ever slower links
    slowest_link: Link | None = None
    ring: Ring | None = None
    collectives: dict[Op, Collective] = field(default_factory=dict)  # over all GPUs of all hosts
    subsets: tuple[Subset, ...] = ()  # the best GPUs for each number of them
    groups: tuple[GroupCost, ...] = ()  # islands and best subsets of one host, where their bandwidths are known
    shared: tuple[Shared, ...] = ()
    nics: tuple[NearNics, ...] = ()
    uneven: tuple[Asymmetry, ...] = ()


class _Inside(NamedTuple):
    """What carries a ring inside one host."""

    speed: float  # bytes per second
    nvlink: bool


def fabric_of(machine: Machine) -> Fabric:
    """Describe the links of all GPUs; collectives stay empty where a bandwidth is unknown or there is one rank only."""
    gpus = tuple(gpu.id for gpu in machine.gpus)
    ring = best_ring(machine, gpus) if len(gpus) > 1 else None
    try:
        collectives = collectives_of(machine, gpus, nodes=machine.nodes) if len(gpus) * machine.nodes > 1 else {}
        ring = ring and replace(ring, bandwidth=ring_bandwidth(machine, gpus))
    except AdvisorError:
        collectives = {}
        ring = ring and replace(ring, bandwidth=None)
    levels, subsets = island_levels(machine), subsets_of(machine)
    groups = [*(island for level in levels for island in level.islands), *(subset.gpus for subset in subsets)]
    groups = [group for group in groups if len(group) <= MOST_COSTED or len(group).bit_count() == 1 or group == gpus]
    return Fabric(
        islands=islands(machine),
        levels=levels,
        slowest_link=slowest_link(machine, gpus),
        ring=ring,
        collectives=collectives,
        subsets=subsets,
        groups=tuple(_group_costs(machine, groups)),
        shared=shared_links(machine),
        nics=nearest_nics(machine),
        uneven=asymmetries(machine),
    )


def _group_costs(machine: Machine, groups: Iterable[tuple[str, ...]]) -> Iterator[GroupCost]:
    """Cost each group once; groups that look alike share the sum."""
    known: dict[Hashable, dict[Op, Collective]] = {}
    for gpus in dict.fromkeys(group for group in groups if len(group) > 1):
        look = shape_of(machine, gpus)
        try:
            if look not in known:
                known[look] = collectives_of(machine, gpus)
        except AdvisorError:
            known[look] = {}
        if known[look]:
            yield GroupCost(gpus=gpus, collectives=known[look])


def collectives_of(
    machine: Machine, gpus: tuple[str, ...], *, nodes: int = 1, concurrent: int = 1
) -> dict[Op, Collective]:
    """Cost every collective of a group: these GPUs on each of `nodes` equal hosts.

    `concurrent` equal groups run at once and share the adapters and the link between sockets; their NVLinks and PCIe
    slots are their own. One rank costs nothing.
    """
    ranks = len(gpus) * nodes
    if ranks <= 1:
        return {op: Collective(latency=0.0, bus_bandwidth=inf) for op in OPS}
    if any(link.kind == "host-memory" for link in _links(machine, gpus).values()):
        return _gloo(machine, gpus, nodes, concurrent)
    inside = _inside(machine, gpus, concurrent)
    generation = min(generation_of(capability_of(machine.gpu(gpu))) for gpu in gpus)
    multicast = inside.nvlink and _has_multicast(machine, gpus)
    group = Group(
        ranks=ranks,
        nodes=nodes,
        generation=generation,
        nvlink=inside.nvlink,
        amd=machine.host.cpu_vendor == "AuthenticAMD",
        ring=ring_graph(inside.speed, generation, nvlink=inside.nvlink),
        network=network_speed(machine, len(gpus), concurrent) if nodes > 1 else None,
        nvls=nvls_graph(inside.speed / ring_share(len(gpus)), len(gpus), generation) if multicast else None,
    )
    return {op: _line(op, group) for op in OPS}


def ring_bandwidth(machine: Machine, gpus: tuple[str, ...]) -> float:
    """Return what a ring over GPUs of one host should move, bytes per second. Raises AdvisorError if it is unknown."""
    links = _links(machine, gpus)
    if any(link.kind == "host-memory" for link in links.values()):
        return min(_known(link, link.bandwidth) for link in links.values())
    return _inside(machine, gpus, 1).speed


def collective_seconds(collective: Collective, op: Op, size_bytes: float, ranks: int) -> float:
    """Return the seconds of one collective over the larger of its buffers; nothing for one rank or no bytes."""
    if ranks <= 1 or size_bytes <= 0:
        return 0.0
    if collective.curve:
        return _along(collective.curve, size_bytes)
    return collective.latency + bus_factor(op, ranks) * size_bytes / collective.bus_bandwidth


def bus_factor(op: Op, ranks: int) -> float:
    """Bytes on the busiest link for each byte of the larger buffer, as nccl-tests' doc/PERFORMANCE.md derives it.

    All-reduce 2(n-1)/n, all-gather and reduce-scatter (n-1)/n, broadcast 1: over 4 ranks 1.5, 0.75, 0.75 and 1.
    """
    if op == "broadcast":
        return 1.0
    return (2 if op == "all_reduce" else 1) * (ranks - 1) / ranks


def _line(op: Op, group: Group) -> Collective:
    empty = estimate(op, 0, group).seconds
    copy = 1 + LOCAL_COPY / (group.ranks - 1) if op in ("all_gather", "reduce_scatter") else 1.0

    def moving(size: int) -> float:
        return copy * (estimate(op, size, group).seconds - empty)

    latency = LAUNCH + empty
    return Collective(
        latency=latency,
        bus_bandwidth=bus_factor(op, group.ranks) * REFERENCE_BYTES / moving(REFERENCE_BYTES),
        curve=((0.0, latency), *((float(size), latency + moving(size)) for size in CURVE_BYTES)),
    )


def _along(curve: Sequence[tuple[float, float]], size: float) -> float:
    """Interpolate a curve, and follow its last stretch beyond its end."""
    above = next((i for i, (bytes_, _) in enumerate(curve) if bytes_ >= size and i), len(curve) - 1)
    (low, before), (high, after) = curve[above - 1], curve[above]
    return before + (after - before) * (size - low) / (high - low)


def _gloo(machine: Machine, gpus: tuple[str, ...], nodes: int, concurrent: int) -> dict[Op, Collective]:
    """CPU processes that stand in for GPUs: the bandwidth of their links is gloo's for an all-reduce."""
    speed = min(_known(link, link.bandwidth) for link in _links(machine, gpus).values()) / concurrent
    if nodes > 1:
        speed = min(speed, network_speed(machine, len(gpus), concurrent))
    share = {"all_gather": GLOO_GATHER, "reduce_scatter": GLOO_GATHER}
    return {op: Collective(latency=GLOO_LATENCY, bus_bandwidth=share.get(op, 1.0) * speed) for op in OPS}


def _inside(machine: Machine, gpus: tuple[str, ...], concurrent: int) -> _Inside:
    """Find what carries the ring: NVLink alone where it closes one, else the ring over the fastest hops there are."""
    if len(gpus) == 1:
        return _Inside(inf, nvlink=False)
    mesh = dumped_ring_speed(machine, gpus) or _mesh_ring(machine, gpus)
    if mesh is not None:
        return _Inside(mesh, nvlink=True)
    speeds = {
        pair: _known(link, hop_speed(machine, link, gpus=gpus, concurrent=concurrent))
        for pair, link in _links(machine, gpus).items()
    }
    order = ring_order(gpus, steep_cost(speeds))
    for a, b in hops(order):
        if frozenset((a, b)) not in speeds:
            raise AdvisorError(f"{machine.source} does not say how {a} and {b} are linked", "give the whole matrix")
    return _Inside(min(speeds[frozenset(hop)] for hop in hops(order)), nvlink=False)


def _known(link: Link, speed: float | None) -> float:
    if speed is None:
        raise AdvisorError(
            f"the bandwidth of {link.a}-{link.b} ({link.code}) is unknown", "name the GPU, for example --gpu a10g"
        )
    return speed


def _mesh_ring(machine: Machine, gpus: tuple[str, ...]) -> float | None:
    """Bytes per second of all rings that NVLink alone closes over the GPUs; None if it closes none.

    Through a switch each GPU has its whole bandwidth to any other. In a mesh NCCL lays several rings, both ways round,
    each of which crosses every cut; together they carry what the narrowest cut does: 6 links of 6 on a DGX-1 V100.
    """
    speeds = {pair: mesh_speed(machine, link, len(gpus)) for pair, link in _links(machine, gpus).items()}
    known = {pair: speed for pair, speed in speeds.items() if speed is not None}
    if has_nvswitch(machine):
        ports = [max((speed for pair, speed in known.items() if gpu in pair), default=None) for gpu in gpus]
        return None if None in ports else min(port for port in ports if port is not None)
    if not all(frozenset(hop) in known for hop in hops(ring_order(gpus, steep_cost(known)))):
        return None
    return min(sum(known[pair] for pair in known if len(pair & side) == 1) for side in map(frozenset, _cuts(gpus)))


def _cuts(gpus: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield one side of each cut: all of them for few GPUs, those that part a single GPU for many."""
    largest = len(gpus) // 2 if len(gpus) <= EVERY_CUT else 1
    for size in range(1, largest + 1):
        yield from combinations(gpus, size)


def _has_multicast(machine: Machine, gpus: tuple[str, ...]) -> bool:
    """Whether NCCL would use NVLS: NVSwitch, more than two GPUs, not switched off; `nvls_graph` knows the rest."""
    off = any(machine.environment.get(name) == "0" for name in ("NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE"))
    return len(gpus) > 2 and not off and has_nvswitch(machine)


def _links(machine: Machine, gpus: tuple[str, ...]) -> dict[frozenset[str], Link]:
    return {frozenset((k.a, k.b)): k for k in machine.links if k.a in gpus and k.b in gpus}

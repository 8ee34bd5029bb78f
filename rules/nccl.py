"""NCCL's own cost model: the time of one collective by algorithm and protocol, and the one NCCL would choose.

Formulas and constants from NCCL 2.30.7, src/graph/tuning.cc and src/graph/search.cc (equal in 2.28 and 2.29). NCCL uses
the model to choose, and it is good within about 20 % on NVLink; `fabric` corrects it by what machines achieve. NCCL
counts in GB/s and microseconds, here as everywhere bytes per second and seconds.
"""

from math import floor, inf, log2
from typing import Literal

from advisor.rules.machine import Value

Op = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
Algorithm = Literal["ring", "tree", "nvls", "nvls-tree"]
Protocol = Literal["ll", "ll128", "simple"]

US, GB = 1e-6, 1e9

# Bytes per second that NCCL counts for one NVLink, by the major compute capability; the bridges of 8.6 parts carry less
# (src/graph/topo.h:17-35). Of PCIe it counts 12 of the 15.75e9 that generation 3 x16 has after line coding.
NVLINK_SPEED = {6: 18 * GB, 7: 20 * GB, 8: 20 * GB, 9: 20.6 * GB, 10: 40.1 * GB}
NVLINK_SPEED_GA102 = 12 * GB
PCIE_SHARE = 12 / 15.75

# Channels that NCCL's search finds on usual hosts, by generation of `generation_of`; public logs show 12 x 30e9
# on 8 H100 and 12 x 20e9 on 8 A100. PCIe carries one.
_NVLINK_CHANNELS = (6, 12, 12, 16)

# Seconds: base, then one hop over NVLink, PCIe and the network, each for LL, LL128, Simple (tuning.cc:148-212).
_PROTOCOLS: tuple[Protocol, ...] = ("ll", "ll128", "simple")
_BASE = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4)}
_HOP_NVLINK = {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4)}
_HOP_PCIE = {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7)}
_HOP_NETWORK = {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0)}
_NVLS_LATENCY = 25.0
_NVLS_TREE_HOP = 20.9

# GB/s by generation, for one, two and more nodes. LL is capped in all, the others per channel.
_LL_MOST = ((39, 39, 20.4), (87.7, 22.5, 19), (141, 45, 35), (282, 90, 70))
_RING_LL128_MOST = ((20, 20, 20), (20, 20, 20), (36.7, 36.7, 36.7), (40, 40, 40))
_TREE_LL128_MOST = ((20, 20, 20), (20, 20, 20), (36.7, 36.7, 29), (55.6, 31.67, 20))
_TREE_MOST = ((26.5, 18.5, 10), (24, 23.6, 17.8), (38.7, 41.4, 36), (70, 42.8, 24))
_NVLS_TREE_MOST = ((0, 0, 0), (0, 0, 0), (0, 57.7, 45.5), (0, 96, 80))
_NVLS_EFFICIENCY = (0.0, 0.0, 0.85, 0.74)

# Tree all-reduce loses bandwidth at middle sizes: factors from 64 B on, by powers of two (tuning.cc:623-627).
_TREE_BY_SIZE: dict[Protocol, tuple[float, ...]] = {
    "ll": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "ll128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    "simple": (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8),
        *(0.9, 0.9),
    ),
}


class Graph(Value, frozen=True, kw_only=True):
    """What NCCL's search found: parallel channels, and bytes per second of each."""

    channels: int
    speed: float

    @property
    def total(self) -> float:
        return self.channels * self.speed


class Group(Value, frozen=True, kw_only=True):
    """The ranks of one communicator and what joins them."""

    ranks: int
    nodes: int = 1
    generation: int  # 0 Volta and older, 1 Ampere and Ada, 2 Hopper, 3 Blackwell: of the oldest GPU
    nvlink: bool  # all hops inside a node
    amd: bool = False  # host CPU
    ring: Graph  # inside a node
    network: float | None = None  # bytes per second of one node; None counts as the ring, which NCCL does for two nodes
    nvls: Graph | None = None  # multicast through NVSwitch inside a node: Hopper and newer

    @property
    def scale(self) -> int:
        """Column of the tables by nodes: one, two, more."""
        return min(self.nodes, 3) - 1


class Estimate(Value, frozen=True, kw_only=True):
    seconds: float
    algorithm: Algorithm
    protocol: Protocol


def generation_of(compute_capability: str | None) -> int:
    """Row of NCCL's tables for a GPU; Ampere where the capability is unknown."""
    major = int((compute_capability or "8").split(".")[0])
    return 3 if major >= 10 else 2 if major >= 9 else 1 if major >= 8 else 0


def nvlink_speed(compute_capability: str | None) -> float:
    """Bytes per second that NCCL counts for one NVLink, one direction: 18 links of an H100 make 370.8e9."""
    if compute_capability == "8.6":
        return NVLINK_SPEED_GA102
    return NVLINK_SPEED[min(int((compute_capability or "8").split(".")[0]), 10)]


def ring_graph(bandwidth: float, generation: int, *, nvlink: bool) -> Graph:
    """Split what a ring can carry into NCCL's usual number of channels; the number decides only where caps apply."""
    channels = _NVLINK_CHANNELS[generation] if nvlink else 1
    return Graph(channels=channels, speed=bandwidth / channels)


def nvls_graph(bandwidth: float, gpus: int, generation: int) -> Graph | None:
    """One channel a GPU, each a multicast head: 8 x 41.2e9 on 8 H100, whose links carry 370.8e9.

    To all-reduce S bytes a GPU sends all of them to the switches and then its share of the sum, S + S/n, so that the n
    channels together carry n/(n+1) of its links. NCCL rounds that to the next speed of a list, 40e9 here; what 5, 6, 7
    and 8 H200 reach follows the formula, not the list.
    """
    return Graph(channels=gpus, speed=bandwidth / (gpus + 1)) if _NVLS_EFFICIENCY[generation] else None


def estimate(op: Op, size: float, group: Group) -> Estimate:
    """Choose what NCCL would: the algorithm and protocol with the least time for `size` bytes of the larger buffer.

    8 A100 with NVSwitch, all-reduce of 25 MiB: ring and Simple, 8.4 + 14 x 3.4 us + 14/8 x 26.2e6 / 240e9 s = 247 us.
    """
    times = [
        Estimate(seconds=_seconds(op, size, group, algorithm, protocol), algorithm=algorithm, protocol=protocol)
        for algorithm, protocol in _choices(op, group)
    ]
    return min(times, key=lambda choice: choice.seconds)


def steps(op: Op, ranks: int) -> int:
    """Steps of a ring: 2(n-1) to reduce and send round, n-1 to gather or scatter, n down a chain."""
    return {"all_reduce": 2 * (ranks - 1), "broadcast": ranks}.get(op, ranks - 1)


def _choices(op: Op, group: Group) -> list[tuple[Algorithm, Protocol]]:
    """What is available: LL128 needs NVLink inside the node, the tree is for all-reduce, NVLS knows Simple only."""
    protocols: list[Protocol] = [p for p in _PROTOCOLS if p != "ll128" or group.nvlink]
    found: list[tuple[Algorithm, Protocol]] = [("ring", protocol) for protocol in protocols]
    if op == "all_reduce":
        found += [("tree", protocol) for protocol in protocols]
    if group.nvls and group.nodes == 1 and op != "broadcast":
        found.append(("nvls", "simple"))
    if group.nvls and group.network and op == "all_reduce":
        found.append(("nvls-tree", "simple"))
    return found


def _seconds(op: Op, size: float, group: Group, algorithm: Algorithm, protocol: Protocol) -> float:
    """latency + size / algorithm bandwidth (tuning.cc:630-655)."""
    bandwidth = _bus_bandwidth(op, group, algorithm, protocol) * _bus_to_algorithm(op, group, algorithm)
    latency = _latency(op, group, algorithm, protocol)
    if algorithm == "tree":
        index = floor(log2(size / 64)) if size >= 64 else 0
        factors = _TREE_BY_SIZE[protocol]
        bandwidth *= factors[index] if index < len(factors) else 1
    many_bytes = size / (group.ring.channels * group.ranks) >= 64
    if op == "all_reduce" and (algorithm, protocol) == ("ring", "simple") and group.nodes > 1 and many_bytes:
        latency *= 1.9 if group.generation == 0 else 1.4
    return latency + (size / bandwidth if bandwidth else inf)


def _bus_bandwidth(op: Op, group: Group, algorithm: Algorithm, protocol: Protocol) -> float:
    """Bytes per second on the busiest link (tuning.cc:306-374)."""
    if algorithm == "nvls":
        return _nvls_bandwidth(op, group)
    if algorithm == "nvls-tree":
        return _nvls_tree_bandwidth(group)
    inside, channels, row, column = group.ring.total, group.ring.channels, group.generation, group.scale
    network = inside if group.network is None else group.network
    bus = min(inside, network)
    ll_row = row if group.nodes == 1 else int(group.amd)
    ll_most = _LL_MOST[ll_row][column] * GB
    if algorithm == "ring":
        if protocol == "simple":
            return bus
        if protocol == "ll":
            return min(ll_most, bus / 2)
        return min(0.92 * bus, channels * _RING_LL128_MOST[row][column] * GB)
    bus = min(0.92 * min(inside, network * _tree_share(group)), channels * _TREE_MOST[row][column] * GB)
    if protocol == "ll":
        return min(bus / 3.8, ll_most)
    if protocol == "ll128":
        return min(bus * (7 / 9 if group.nodes == 1 else 120 / 128), channels * _TREE_LL128_MOST[row][column] * GB)
    return bus


def _nvls_bandwidth(op: Op, group: Group) -> float:
    """Multicast halves an all-reduce's traffic; one channel in n carries its own head's share only."""
    if group.nvls is None:
        return 0.0
    heads, ranks = group.nvls.channels, group.ranks
    share = 2 if op == "all_reduce" else (ranks - 1) / ranks
    return group.nvls.total * _NVLS_EFFICIENCY[group.generation] * (heads - 1) / heads * share


def _nvls_tree_bandwidth(group: Group) -> float:
    """Multicast inside the nodes and a tree between them."""
    if group.nvls is None or group.network is None:
        return 0.0
    heads = group.nvls.channels
    inside = group.nvls.speed * _NVLS_EFFICIENCY[group.generation] * (heads - 1) / heads * 2
    between = group.network / heads * _tree_share(group)
    return heads * min(inside, between, _NVLS_TREE_MOST[group.generation][group.scale] * GB)


def _tree_share(group: Group) -> int:
    """Return how much of a tree's bus bandwidth one byte per second of a node's network is worth.

    Of two nodes each sends S bytes to all-reduce S; a node inside a larger tree sends 2S, as in a ring.
    """
    return 2 if group.nodes == 2 else 1


def _bus_to_algorithm(op: Op, group: Group, algorithm: Algorithm) -> float:
    return 0.5 if algorithm == "tree" else group.ranks / steps(op, group.ranks)


def _latency(op: Op, group: Group, algorithm: Algorithm, protocol: Protocol) -> float:
    """base + hops inside the node + hops between nodes (tuning.cc:384-436)."""
    column = _PROTOCOLS.index(protocol)
    ranks, nodes = group.ranks, group.nodes
    if algorithm == "nvls":
        return _NVLS_LATENCY * US
    if algorithm == "nvls-tree":
        return (_NVLS_LATENCY + 2 * floor(log2(nodes)) * _NVLS_TREE_HOP) * US
    inside = (_HOP_NVLINK if group.nvlink else _HOP_PCIE)[algorithm][column]
    between = _HOP_NETWORK["tree" if ranks == nodes else algorithm][column]
    base = _BASE[algorithm][column]
    if algorithm == "tree":
        return (base + 2 * ((ranks / nodes - 1) * inside + floor(log2(nodes)) * between)) * US
    crossings = 0 if nodes == 1 else 2 * (nodes - 1) if op == "all_reduce" else nodes - 1
    post = 0.0 if nodes == 1 else (2.0 if group.amd else 1.0) * (3 if protocol == "simple" else 1)
    return (base + (steps(op, ranks) - crossings) * max(inside, post) + crossings * between) * US

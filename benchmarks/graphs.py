"""Seconds of the best ring, the best subsets and the graph of machines with many GPUs.

Run: python benchmarks/graphs.py [SEED]. Regular machines, and matrices without any order, whose 2 to 120 grades of
links are drawn at random. The last line is a JSON object of seconds, the slowest of each kind.
"""

import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator

from advisor.rules.graph import graph_of
from advisor.rules.links import kind_of_code, with_link_bandwidths
from advisor.rules.machine import Gpu, Link, Machine, Nic
from advisor.rules.ring_search import least_cost, quick_ring, ring_cost
from advisor.rules.rings import cost_matrix, ring_order
from advisor.rules.subsets import best_subsets
from advisor.rules.topology import hop_cost

GPUS = 16
SAMPLES = 10  # random machines of each kind


def machine(code: Callable[[int, int], str], *, nics: int = 0, nodes: int = 1, gpus: int = GPUS) -> Machine:
    """Build a host of V100; `code` says what stands in the matrix between GPU a and GPU b."""
    members = tuple(Gpu(id=f"GPU{i}", index=i, name="v100", numa=2 * i // gpus) for i in range(gpus))
    adapters = tuple(Nic(id=f"NIC{i}", kind="infiniband", bandwidth=5e10) for i in range(nics))
    cells = [(a.id, b.id, code(a.index, b.index)) for a, b in itertools.combinations(members, 2)]
    for (i, gpu), (j, nic) in itertools.product(enumerate(members), enumerate(adapters)):
        cells.append((gpu.id, nic.id, "PIX" if i * nics // gpus == j else "SYS"))
    links = tuple(Link(a=a, b=b, code=text, kind=kind_of_code(text) or "network") for a, b, text in cells)
    return with_link_bandwidths(Machine(gpus=members, nics=adapters, links=links, nodes=nodes))


def measured(speeds: Callable[[], float]) -> Machine:
    """Build a host whose links all have a speed of their own, bytes per second."""
    box = machine(lambda a, b: "PHB")
    links = (
        Link(a=k.a, b=k.b, code=k.code, kind=k.kind, bandwidth=speeds(), bandwidth_source="measured") for k in box.links
    )
    return Machine(gpus=box.gpus, links=tuple(links))


def levels(*sizes: int) -> Callable[[int, int], str]:
    """Link the GPUs of groups of these sizes, the smallest first, by PIX, PXB and NODE, and all others by SYS."""

    def code(a: int, b: int) -> str:
        return next(
            (c for c, size in zip(("PIX", "PXB", "NODE"), sizes, strict=False) if a // size == b // size), "SYS"
        )

    return code


def machines(seed: int) -> Iterator[tuple[str, Machine]]:
    yield "16 on NVSwitch (DGX-2)", machine(lambda a, b: "NV6")
    yield "8 x 2 on PCIe switches, 2 sockets", machine(levels(2, 4, 8))
    yield "2 x 8 on PCIe switches", machine(levels(8))
    yield "4 x 4 islands", machine(levels(4, 4, 8))
    yield "8 pairs with a bridge", machine(lambda a, b: "NV2" if a // 2 == b // 2 else "SYS")
    yield "cubes of 8, twice", machine(lambda a, b: "NV1" if bin(a ^ b).count("1") == 1 else "SYS")
    draw = random.Random(seed)
    codes = ("NV2", "NV1", "PIX", "PHB", "SYS")
    for grades in (2, 3, 4, 5):
        for _ in range(SAMPLES):
            weights = [draw.random() for _ in range(grades)]
            choice = draw.choices(codes[-grades:], weights, k=GPUS**2)
            yield f"random, {grades} grades", machine(lambda a, b, choice=choice: choice[GPUS * a + b])  # type: ignore[misc]
    for _ in range(SAMPLES):
        yield "measured, 3 % of noise", measured(lambda: draw.gauss(20e9, 0.2e9))
        yield "measured, 5 to 500 GB/s", measured(lambda: 5e9 * 100 ** draw.random())


def seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def main() -> None:
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    slowest: dict[str, tuple[float, float, int, int]] = {}
    for name, box in machines(seed):
        ids, cost = [gpu.id for gpu in box.gpus], hop_cost(box)
        ring, subsets = seconds(lambda: ring_order(ids, cost)), seconds(lambda: best_subsets(box))  # noqa: B023
        matrix = cost_matrix(ids, cost)
        proven = ring_cost(quick_ring(matrix), matrix) == least_cost(matrix, GPUS)
        before = slowest.get(name, (0.0, 0.0, 0, 0))
        slowest[name] = (max(ring, before[0]), max(subsets, before[1]), before[2] + proven, before[3] + 1)
    print(f"{'16 GPUs':36}{'ring':>9}{'subsets':>10}   guess proven at once")
    for name, (ring, subsets, proven, count) in slowest.items():
        print(f"{name:36}{ring * 1e3:6.0f} ms{subsets * 1e3:7.0f} ms   {proven} of {count}")
    large = machine(levels(2, 4, 8), nics=36)
    many = machine(lambda a, b: "NV6", gpus=8, nics=8, nodes=64)
    graph_of(large)  # imports networkx
    graphs = {
        "graph, 16 GPUs and 36 NICs": seconds(lambda: graph_of(large)),
        "graph, 64 hosts of 8 GPUs": seconds(lambda: graph_of(many, hosts=64)),
    }
    for name, taken in graphs.items():
        print(f"{name:36}{taken * 1e3:6.0f} ms")
    rings = {name: round(max(ring, subsets), 4) for name, (ring, subsets, *_) in slowest.items()}
    print(json.dumps(rings | {name: round(taken, 4) for name, taken in graphs.items()}))


if __name__ == "__main__":
    main()

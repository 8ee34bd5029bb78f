from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.rules.links import kind_of_code, with_link_bandwidths
from advisor.rules.machine import Gpu, Link, Machine, Nic
from advisor.rules.rings import hops, ring_order, steep_cost
from advisor.rules.topology import (
    best_ring,
    gpu_groups,
    graph_of,
    has_nvswitch,
    islands,
    slowest_link,
    widest_path,
)

DGX1 = """
      NV1 NV1 NV2 NV2 SYS SYS SYS
      NV2 NV1 SYS NV2 SYS SYS
      NV2 SYS SYS NV1 SYS
      SYS SYS SYS NV1
      NV1 NV1 NV2
      NV2 NV1
      NV2
"""
TWO_SOCKETS = """
      PIX PHB PHB SYS SYS SYS SYS
      PHB PHB SYS SYS SYS SYS
      PIX SYS SYS SYS SYS
      SYS SYS SYS SYS
      PIX PHB PHB
      PHB PHB
      PIX
"""
BRIDGED_PAIRS = """
      NV4 SYS SYS
      SYS SYS
      NV4
"""


def machine(upper: str, name: str | None = "v100", **facts: object) -> Machine:
    """Read the upper triangle of a matrix, one row a GPU."""
    rows = [line.split() for line in upper.strip().splitlines()]
    gpus = tuple(Gpu(id=f"GPU{i}", index=i, name=name) for i in range(len(rows) + 1))
    links = []
    for i, row in enumerate(rows):
        for step, code in enumerate(row, 1):
            kind = kind_of_code(code)
            if kind is not None:  # "-" is a cell that the paste has lost
                links.append(Link(a=f"GPU{i}", b=f"GPU{i + step}", code=code, kind=kind))
    return with_link_bandwidths(Machine(gpus=gpus, links=tuple(links), **facts))  # type: ignore[arg-type]


def uniform(code: str, count: int, name: str | None) -> Machine:
    return machine("\n".join(" ".join([code] * n) for n in range(count - 1, 0, -1)), name)


def sixteen(near: str, size: int, name: str) -> Machine:
    """Two sockets of eight GPUs, `size` of which share the near link."""

    def code(i: int, j: int) -> str:
        return near if i // size == j // size else "NODE" if i // 8 == j // 8 else "SYS"

    return machine("\n".join(" ".join(code(i, j) for j in range(i + 1, 16)) for i in range(15)), name)


def ids(machine: Machine) -> tuple[str, ...]:
    return tuple(gpu.id for gpu in machine.gpus)


def test_gpus_on_nvlink_form_one_island_and_bridged_pairs_several() -> None:
    assert islands(machine(DGX1)) == (ids(machine(DGX1)),)
    assert islands(machine(BRIDGED_PAIRS, "3090")) == (("GPU0", "GPU1"), ("GPU2", "GPU3"))


def test_an_island_reaches_only_as_far_as_the_best_kind_of_link() -> None:
    assert islands(machine("PHB SYS SYS\nSYS SYS\nPHB", "a10g")) == (("GPU0", "GPU1"), ("GPU2", "GPU3"))
    assert len(islands(uniform("SYS", 4, "4090"))) == 1


def test_a_gpu_without_the_best_kind_of_link_is_an_island_of_one() -> None:
    assert islands(machine("NV4 PHB\nPHB", "a6000")) == (("GPU0", "GPU1"), ("GPU2",))
    assert islands(Machine(gpus=(Gpu(id="GPU0", index=0),))) == (("GPU0",),)


def test_the_ring_of_a_dgx1_uses_double_links_only() -> None:
    cube = machine(DGX1)
    assert best_ring(cube, ids(cube)).bandwidth == pytest.approx(2 * 25.781e9)


def test_the_ring_crosses_between_sockets_as_seldom_as_it_can() -> None:
    box = machine(TWO_SOCKETS, "a10g")
    order = best_ring(box, ("GPU0", "GPU4", "GPU1", "GPU5", "GPU2", "GPU6", "GPU3", "GPU7")).order
    codes = {frozenset((link.a, link.b)): link.code for link in box.links}
    taken = [codes[frozenset(hop)] for hop in hops(order)]
    assert (taken.count("SYS"), taken.count("PHB"), taken.count("PIX")) == (2, 2, 4)


def test_without_bandwidths_links_are_ranked_by_kind() -> None:
    box = machine(TWO_SOCKETS, name=None)
    ring = best_ring(box, ids(box))
    slowest = slowest_link(box, ids(box))
    assert ring.bandwidth is None
    assert slowest is not None
    assert slowest.code == "SYS"
    assert slowest_link(box, ("GPU0", "GPU1", "GPU2", "GPU3")).code == "PHB"  # type: ignore[union-attr]


def test_a_ring_of_one_has_no_slowest_link_and_a_lost_cell_no_bandwidth() -> None:
    assert slowest_link(machine(DGX1), ("GPU0",)) is None
    assert best_ring(machine("-", "a10g"), ("GPU0", "GPU1")).bandwidth is None


def test_sixteen_gpus_are_ordered_by_node_and_socket() -> None:
    rows = [
        [("PIX" if i // 4 == j // 4 else "NODE" if i // 8 == j // 8 else "SYS") for j in range(16)] for i in range(16)
    ]
    box = machine("\n".join(" ".join(row[i + 1 :]) for i, row in enumerate(rows[:-1])), "a10g")
    shuffled = tuple(f"GPU{7 * i % 16}" for i in range(16))
    codes = {frozenset((link.a, link.b)): link.code for link in box.links}
    taken = [codes[frozenset(hop)] for hop in hops(best_ring(box, shuffled).order)]
    assert (taken.count("SYS"), taken.count("NODE")) == (2, 2)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=15, max_size=15))
def test_no_other_ring_of_six_has_a_faster_slowest_hop(grades: list[int]) -> None:
    gpus = "abcdef"
    grade = dict(zip(map(frozenset, combinations(gpus, 2)), grades, strict=True))
    best = min(grade[frozenset(hop)] for hop in hops(ring_order(gpus, steep_cost(grade))))
    every = [min(grade[frozenset(hop)] for hop in hops((gpus[0], *rest))) for rest in permutations(gpus[1:])]
    assert best == max(every)


@settings(max_examples=30, deadline=None)
@given(st.integers(9, 16), st.randoms(use_true_random=False))
def test_a_long_ring_visits_every_gpu_once_from_the_first_on(count: int, random: object) -> None:
    gpus = [f"GPU{i}" for i in range(count)]
    grade = {frozenset(pair): random.randint(0, 3) for pair in combinations(gpus, 2)}  # type: ignore[attr-defined]
    order = ring_order(gpus, steep_cost(grade))
    assert order[0] == "GPU0"
    assert sorted(order) == sorted(gpus)


@pytest.mark.parametrize(
    ("code", "count", "name", "switched"),
    [
        ("NV12", 8, "a100", True),
        ("NV18", 4, "h100", True),
        ("NV8", 8, "a800", True),
        ("NV12", 8, None, True),
        ("NV4", 4, "a100", False),
        ("NV6", 4, "h100", False),
        ("NV18", 2, "h200", False),
        ("PIX", 8, "a100", False),
    ],
)
def test_counts_beyond_what_one_gpu_has_mean_nvswitch(code: str, count: int, name: str | None, switched: bool) -> None:
    assert has_nvswitch(uniform(code, count, name)) is switched


def test_a_cube_mesh_has_no_nvswitch() -> None:
    assert not has_nvswitch(machine(DGX1))


def test_the_widest_path_goes_round_a_slow_link() -> None:
    cube = machine(DGX1)
    assert widest_path(cube, "GPU0", "GPU3") == ("GPU0", "GPU3")
    assert widest_path(cube, "GPU0", "GPU7") in (("GPU0", "GPU3", "GPU7"), ("GPU0", "GPU4", "GPU7"))
    assert widest_path(machine("-", "a10g"), "GPU0", "GPU1") == ()


def test_groups_are_all_gpus_one_of_equal_islands_and_the_best_of_each_size() -> None:
    groups = gpu_groups(machine(TWO_SOCKETS, "a10g"))
    assert groups[0] == tuple(f"GPU{i}" for i in range(8))
    assert sorted(map(len, groups)) == [1, 2, 4, 8]
    assert ("GPU0", "GPU1", "GPU2", "GPU3") in groups


def test_the_best_pair_is_the_bridged_one() -> None:
    assert ("GPU1", "GPU2") in gpu_groups(machine("PHB PHB\nNV4", "3090"))


def test_unequal_gpus_are_also_offered_apart_and_the_single_one_is_the_largest() -> None:
    box = machine("PHB PHB\nPHB", "3090")
    small, *large = box.gpus
    mixed = Machine(
        gpus=(
            Gpu(id=small.id, index=0, name="3060", memory=12),
            *(Gpu(id=gpu.id, index=gpu.index, name="3090", memory=24) for gpu in large),
        ),
        links=box.links,
    )
    groups = gpu_groups(mixed)
    assert ("GPU1", "GPU2") in groups
    assert ("GPU1",) in groups
    assert ("GPU0",) in groups


def test_a_machine_without_gpus_has_no_groups() -> None:
    assert gpu_groups(Machine()) == ()


def test_groups_of_sixteen_gpus_keep_to_the_islands() -> None:
    rows = [
        ["NV4" if i // 2 == j // 2 else "NODE" if i // 8 == j // 8 else "SYS" for j in range(16)] for i in range(16)
    ]
    box = machine("\n".join(" ".join(row[i + 1 :]) for i, row in enumerate(rows[:-1])), "a6000")
    eight = next(group for group in gpu_groups(box) if len(group) == 8)
    assert eight in (tuple(f"GPU{i}" for i in range(8)), tuple(f"GPU{i}" for i in range(8, 16)))


def test_the_graph_puts_one_switch_between_gpus_that_share_nvlinks() -> None:
    graph = graph_of(uniform("NV12", 8, "a100"))
    assert graph.nodes["NVSwitch"]["kind"] == "nvswitch"
    assert graph.degree["NVSwitch"] == 8
    assert graph.edges["GPU0", "NVSwitch"]["bandwidth"] == 300e9


def test_the_graph_of_a_mesh_has_its_links() -> None:
    graph = graph_of(machine(DGX1))
    assert graph.edges["GPU0", "GPU3"]["kind"] == "nvlink"
    assert graph.edges["GPU0", "GPU5"]["kind"] == "inter-socket"


def test_the_graph_infers_switches_bridges_and_the_link_between_sockets() -> None:
    graph = graph_of(machine(TWO_SOCKETS, "a10g"))
    kinds = [kind for _, kind in graph.nodes(data="kind")]
    assert (kinds.count("pcie-switch"), kinds.count("host-bridge")) == (4, 2)
    between = [edge for *edge, kind in graph.edges(data="kind") if kind == "inter-socket"]
    assert len(between) == 1
    (path,) = [widest for widest in [sorted(graph.neighbors("pcie-switch 0"))] if widest]
    assert path == ["GPU0", "GPU1", "host-bridge 0"]


def test_the_graph_joins_devices_of_one_numa_node_whose_pcie_path_nvlink_hides() -> None:
    gpus = tuple(Gpu(id=f"GPU{i}", index=i, name="a100", numa=i // 2) for i in range(4))
    links = tuple(Link(a=a.id, b=b.id, code="NV4", kind="nvlink") for a, b in combinations(gpus, 2))
    graph = graph_of(with_link_bandwidths(Machine(gpus=gpus, links=links)))
    assert sorted(graph.neighbors("numa-node 0")) == ["GPU0", "GPU1"]


def test_a_nic_hangs_on_the_switch_of_its_gpu() -> None:
    gpus = tuple(Gpu(id=f"GPU{i}", index=i, name="h100") for i in range(2))
    links = (
        Link(a="GPU0", b="NIC0", code="PIX", kind="pcie-switch"),
        Link(a="GPU1", b="NIC0", code="SYS", kind="inter-socket"),
        Link(a="GPU0", b="GPU1", code="NV18", kind="nvlink"),
        Link(a="GPU0", b="GPU9", code="SYS", kind="inter-socket"),  # a device that nothing lists
    )
    graph = graph_of(Machine(gpus=gpus, nics=(Nic(id="NIC0"),), links=links))
    assert sorted(graph.neighbors("pcie-switch 0")) == ["GPU0", "GPU1", "NIC0"]
    assert "GPU9" not in graph

import pytest
from msgspec.structs import replace

from advisor.rules.links import kind_of_code, with_link_bandwidths
from advisor.rules.machine import Gpu, Link, Machine
from advisor.rules.rings import hops
from advisor.rules.topology import best_ring, has_nvswitch, island_levels, islands, shape_of, slowest_link

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


def test_levels_of_islands_go_from_the_nearest_links_to_the_farthest() -> None:
    levels = [(level.kind, tuple(map(len, level.islands))) for level in island_levels(machine(TWO_SOCKETS, "a10g"))]
    assert levels == [("pcie-switch", (2, 2, 2, 2)), ("host-bridge", (4, 4)), ("inter-socket", (8,))]


def test_a_kind_of_link_that_joins_nothing_new_is_no_level() -> None:
    assert [level.kind for level in island_levels(machine(DGX1))] == ["nvlink"]
    assert island_levels(Machine(gpus=(Gpu(id="GPU0", index=0),))) == ()


def test_pairs_with_a_bridge_on_pcie_cards_are_islands_within_the_whole() -> None:
    levels = island_levels(machine("NV12 SYS SYS\nSYS SYS\nNV12", "a100 80gb pcie"))
    assert levels[0].islands == (("GPU0", "GPU1"), ("GPU2", "GPU3"))
    assert [level.kind for level in levels] == ["nvlink", "inter-socket"]


def test_differences_within_the_noise_of_a_measurement_do_not_decide_the_ring() -> None:
    box = machine("PHB SYS SYS\nSYS SYS\nPHB", "a10g")
    speeds = {"GPU0-GPU1": 20.0e9, "GPU2-GPU3": 20.4e9, "GPU0-GPU2": 8.0e9, "GPU1-GPU3": 8.3e9}
    links = tuple(
        replace(k, bandwidth=speeds.get(f"{k.a}-{k.b}", 8.1e9), bandwidth_source="measured") for k in box.links
    )
    measured = replace(box, links=links)
    assert best_ring(measured, ids(box)).order == best_ring(box, ids(box)).order
    slow = replace(measured, links=tuple(replace(k, bandwidth=5e9) if k.b == "GPU2" else k for k in links))
    assert best_ring(slow, ids(box)).order != best_ring(box, ids(box)).order


def test_the_slowest_link_is_the_slowest_of_those_that_count_as_equal() -> None:
    box = machine("PHB PHB\nPHB", "a10g")
    speeds = iter((20.2e9, 20.0e9, 20.1e9))
    measured = replace(box, links=tuple(replace(k, bandwidth=next(speeds)) for k in box.links))
    slowest = slowest_link(measured, ids(box))
    assert slowest is not None
    assert slowest.bandwidth == 20.0e9


def test_groups_have_one_shape_if_their_gpus_and_links_are_equal() -> None:
    box = machine(TWO_SOCKETS, "a10g")
    shapes = [shape_of(box, (f"GPU{a}", f"GPU{b}")) for a, b in ((0, 1), (6, 7), (0, 2), (3, 4))]
    assert shapes[0] == shapes[1]
    assert len(set(shapes)) == 3
    numa = replace(box, gpus=tuple(replace(gpu, numa=gpu.index // 4) for gpu in box.gpus))
    assert shape_of(numa, ("GPU0", "GPU1")) == shape_of(numa, ("GPU6", "GPU7"))
    assert shape_of(numa, ("GPU0", "GPU4")) != shape_of(box, ("GPU0", "GPU4"))

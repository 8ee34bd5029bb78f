"""Times that NCCL's formulas give, worked out from its source; the A100 rows agree with PyTorch's own estimator."""

import pytest

from advisor.rules.nccl import Graph, Group, Op, estimate, generation_of, nvls_graph, ring_graph

KIB, MIB, GIB = 1024, 1024**2, 1024**3


def on_nvlink(generation: int, speed: float, **facts: object) -> Group:
    facts = {"ranks": 8} | facts
    return Group(generation=generation, nvlink=True, ring=Graph(channels=12, speed=speed), **facts)  # type: ignore[arg-type]


def on_pcie(ranks: int, speed: float) -> Group:
    return Group(ranks=ranks, generation=1, nvlink=False, ring=Graph(channels=1, speed=speed))


A100 = on_nvlink(1, 20e9)
H100 = on_nvlink(2, 30e9)
H100_NVLS = on_nvlink(2, 30e9, nvls=Graph(channels=8, speed=40e9))
H100_TWO_NODES = on_nvlink(2, 30e9, ranks=16, nodes=2)


@pytest.mark.parametrize(
    ("group", "op", "size", "microseconds", "choice"),
    [
        (A100, "all_reduce", 64 * KIB, 16.3, ("ring", "ll")),
        (A100, "all_reduce", MIB, 35.9, ("ring", "ll")),
        (A100, "all_reduce", 25 * MIB, 247.1, ("ring", "simple")),
        (A100, "all_reduce", 100 * MIB, 820.6, ("ring", "simple")),
        (A100, "all_reduce", GIB, 7885, ("ring", "simple")),
        (A100, "all_gather", 25 * MIB, 127.8, ("ring", "simple")),
        (A100, "all_gather", GIB, 3947, ("ring", "simple")),
        (H100_NVLS, "all_reduce", MIB, 28.0, ("ring", "ll")),
        (H100_NVLS, "all_reduce", 25 * MIB, 121.4, ("nvls", "simple")),
        (H100_NVLS, "all_reduce", GIB, 3973, ("nvls", "simple")),
        (H100_NVLS, "all_gather", 25 * MIB, 95.9, ("ring", "simple")),
        (H100_NVLS, "all_gather", GIB, 2642, ("ring", "simple")),
        (H100, "all_reduce", 25 * MIB, 179.1, ("ring", "ll128")),
        (H100, "all_reduce", GIB, 5276, ("ring", "simple")),
        (H100_TWO_NODES, "all_reduce", 64 * KIB, 30.8, ("tree", "ll")),
        (H100_TWO_NODES, "all_reduce", 25 * MIB, 223.6, ("ring", "ll128")),
        (H100_TWO_NODES, "all_reduce", GIB, 5777, ("ring", "simple")),
        (on_pcie(2, 20e9), "all_reduce", MIB, 72.2, ("ring", "simple")),
        (on_pcie(2, 20e9), "all_reduce", 25 * MIB, 1330.5, ("ring", "simple")),
        (on_pcie(8, 5e9), "all_reduce", 25 * MIB, 9263, ("ring", "simple")),
        (on_pcie(8, 5e9), "all_reduce", GIB, 375898, ("ring", "simple")),
    ],
)
def test_time_and_choice_are_nccl_s(
    group: Group, op: Op, size: int, microseconds: float, choice: tuple[str, str]
) -> None:
    found = estimate(op, size, group)
    assert found.seconds * 1e6 == pytest.approx(microseconds, rel=0.02)
    assert (found.algorithm, found.protocol) == choice


def test_ll128_is_never_chosen_on_pcie() -> None:
    chosen = {estimate("all_reduce", 2**power, on_pcie(8, 20e9)).protocol for power in range(8, 31)}
    assert chosen == {"ll", "simple"}


def test_a_tree_beats_the_ring_for_small_messages_over_many_nodes() -> None:
    many = on_nvlink(2, 30e9, ranks=512, nodes=64)
    assert estimate("all_reduce", MIB, many).algorithm == "tree"
    assert estimate("all_gather", MIB, many).algorithm == "ring"


@pytest.mark.parametrize(("gpus", "busbw"), [(5, 414.2e9), (6, 435.6e9), (7, 460.0e9), (8, 473.1e9)])
def test_multicast_over_5_to_8_h200_gains_as_much_as_published(gpus: int, busbw: float) -> None:
    group = on_nvlink(2, 30e9, ranks=gpus, nvls=nvls_graph(370.8e9, gpus, 2))
    found = estimate("all_reduce", 8 * GIB, group)
    assert found.algorithm == "nvls"
    assert 2 * (gpus - 1) / gpus * 8 * GIB / found.seconds == pytest.approx(busbw, rel=0.05)


def test_multicast_needs_hopper() -> None:
    assert nvls_graph(240e9, 8, 1) is None


def test_two_nodes_all_reduce_faster_than_a_ring_through_their_network_could() -> None:
    network = 50e9
    two, three = (on_nvlink(1, 20e9, ranks=8 * nodes, nodes=nodes, network=network) for nodes in (2, 3))
    assert estimate("all_reduce", GIB, two).algorithm == "tree"
    assert 1.5 * network < 2 * 15 / 16 * GIB / estimate("all_reduce", GIB, two).seconds < 2 * network
    assert 2 * 23 / 24 * GIB / estimate("all_reduce", GIB, three).seconds < network


def test_multicast_inside_two_nodes_and_a_tree_between_them_beats_both() -> None:
    plain = on_nvlink(2, 30e9, ranks=16, nodes=2, network=372e9)
    multicast = on_nvlink(2, 30e9, ranks=16, nodes=2, network=372e9, nvls=nvls_graph(370.8e9, 8, 2))
    assert estimate("all_reduce", GIB, multicast).algorithm == "nvls-tree"
    assert estimate("all_reduce", GIB, multicast).seconds < 0.9 * estimate("all_reduce", GIB, plain).seconds
    assert estimate("all_gather", GIB, multicast) == estimate("all_gather", GIB, plain)


def test_channels_carry_the_whole_bandwidth() -> None:
    assert ring_graph(240e9, 1, nvlink=True) == Graph(channels=12, speed=20e9)
    assert ring_graph(20e9, 1, nvlink=False) == Graph(channels=1, speed=20e9)


@pytest.mark.parametrize(
    ("capability", "row"), [("6.0", 0), ("7.5", 0), ("8.9", 1), ("9.0", 2), ("12.0", 3), (None, 1)]
)
def test_the_capability_chooses_the_row(capability: str | None, row: int) -> None:
    assert generation_of(capability) == row

from itertools import combinations
from math import isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.probe.load import load_machine
from advisor.rules.errors import AdvisorError
from advisor.rules.fabric import OPS, Collective, collective_seconds, collectives_of, fabric_of, ring_bandwidth
from advisor.rules.links import kind_of_code, with_link_bandwidths
from advisor.rules.machine import Gpu, Host, Link, Machine, Nic
from advisor.rules.transport import TCP_THREAD, assumed_ethernet

MIB, GIB = 1024**2, 1024**3
NO_P2P = {"NCCL_P2P_DISABLE": "1"}
NO_P2P_NO_SHM = NO_P2P | {"NCCL_SHM_DISABLE": "1"}
DGX1 = {
    "NV2": ("03", "04", "12", "15", "23", "47", "56", "67"),
    "NV1": ("01", "02", "13", "26", "37", "45", "46", "57"),
}


def machine(code: str, count: int, name: str | None, vendor: str = "GenuineIntel", **facts: object) -> Machine:
    """Return GPUs that all reach each other by the same kind of link."""
    gpus = tuple(Gpu(id=f"GPU{i}", index=i, name=name) for i in range(count))
    kind = kind_of_code(code)
    assert kind is not None
    links = tuple(Link(a=a.id, b=b.id, code=code, kind=kind) for a, b in combinations(gpus, 2))
    return with_link_bandwidths(Machine(gpus=gpus, links=links, host=Host(cpu_vendor=vendor), **facts))  # type: ignore[arg-type]


def with_codes(machine: Machine, codes: dict[str, tuple[str, ...]]) -> Machine:
    """Replace the codes of some pairs: {"NV4": ("01", "23")}."""
    code_of = {frozenset(f"GPU{i}" for i in pair): code for code, pairs in codes.items() for pair in pairs}
    links = []
    for link in machine.links:
        code = code_of.get(frozenset((link.a, link.b)), link.code)
        kind = kind_of_code(code)
        assert kind is not None
        links.append(Link(a=link.a, b=link.b, code=code, kind=kind))
    return with_link_bandwidths(replace(machine, links=tuple(links)))


def ids(machine: Machine) -> tuple[str, ...]:
    return tuple(gpu.id for gpu in machine.gpus)


def bus_bandwidth(machine: Machine, *gpus: str, op: str = "all_reduce", nodes: int = 1, concurrent: int = 1) -> float:
    return collectives_of(machine, gpus or ids(machine), nodes=nodes, concurrent=concurrent)[op].bus_bandwidth  # type: ignore[index]


@pytest.mark.parametrize(
    ("environment", "op", "size", "milliseconds"),
    [
        ({}, "all_reduce", 64 * MIB, 0.264),
        ({}, "all_reduce", GIB, 3.29),
        ({}, "all_gather", 256 * MIB, 0.560),
        ({}, "reduce_scatter", GIB, 1.99),
        (NO_P2P, "all_reduce", 64 * MIB, 2.50),
        (NO_P2P, "all_gather", 64 * MIB, 1.36),
        (NO_P2P_NO_SHM, "all_reduce", 64 * MIB, 21.2),
        (NO_P2P_NO_SHM, "reduce_scatter", 64 * MIB, 10.9),
    ],
)
def test_times_on_two_h200_are_near_the_measured_ones(
    environment: dict[str, str], op: str, size: int, milliseconds: float
) -> None:
    pair = machine("NV18", 2, "NVIDIA H200", environment=environment)
    cost = collectives_of(pair, ids(pair))[op]  # type: ignore[index]
    assert collective_seconds(cost, op, size, 2) * 1e3 == pytest.approx(milliseconds, rel=0.15)  # type: ignore[arg-type]


@pytest.mark.parametrize("environment", [{}, NO_P2P, NO_P2P_NO_SHM])
def test_small_collectives_take_as_long_as_their_launch_whatever_the_path(environment: dict[str, str]) -> None:
    pair = machine("NV18", 2, "NVIDIA H200", environment=environment)
    cost = collectives_of(pair, ids(pair))["all_reduce"]
    assert 30e-6 < collective_seconds(cost, "all_reduce", 1024, 2) < 60e-6


def test_multicast_makes_all_reduce_on_eight_h100_faster_until_it_is_switched_off() -> None:
    on = bus_bandwidth(machine("NV18", 8, "h100"))
    off = bus_bandwidth(machine("NV18", 8, "h100", environment={"NCCL_NVLS_ENABLE": "0"}))
    assert on == pytest.approx(476e9, rel=0.1)
    assert off < 0.75 * on


def test_links_through_a_switch_are_counted_once_and_links_of_a_mesh_together() -> None:
    switched = bus_bandwidth(machine("NV12", 4, "a100"))
    mesh = bus_bandwidth(machine("NV4", 4, "a100"))
    assert mesh == pytest.approx(switched, rel=0.01)


def test_a_dgx1_uses_all_six_links_and_a_pair_of_it_only_its_own() -> None:
    cube = with_codes(machine("SYS", 8, "v100"), DGX1)
    assert bus_bandwidth(cube) == pytest.approx(120e9, rel=0.2)
    assert bus_bandwidth(cube, "GPU0", "GPU3") == pytest.approx(40e9, rel=0.2)
    assert bus_bandwidth(cube, "GPU0", "GPU1") == pytest.approx(20e9, rel=0.2)


def test_bridged_pairs_are_fast_alone_and_as_slow_as_pcie_together() -> None:
    box = with_codes(machine("SYS", 4, "a6000"), {"NV4": ("01", "23")})
    assert bus_bandwidth(box, "GPU0", "GPU1") > 2.5 * bus_bandwidth(box)


def test_a_cell_lost_from_an_nvswitch_machine_does_not_matter() -> None:
    whole = machine("NV18", 8, "h100")
    torn = replace(
        whole, links=tuple(link for link in whole.links if "GPU7" not in (link.a, link.b) or link.a == "GPU0")
    )
    assert bus_bandwidth(torn) == bus_bandwidth(whole)


def test_peer_to_peer_below_a_switch_is_faster_than_through_host_memory() -> None:
    assert bus_bandwidth(machine("PIX", 2, "a10g")) > bus_bandwidth(machine("PHB", 2, "a10g"))


def test_geforce_cards_go_through_host_memory_even_below_a_switch() -> None:
    data_centre, geforce = machine("PIX", 2, "l40s"), machine("PIX", 2, "4090")
    assert bus_bandwidth(geforce) < bus_bandwidth(data_centre)


def test_two_gpus_on_amd_talk_directly_and_three_do_not() -> None:
    two, three = machine("PHB", 2, "l40s", "AuthenticAMD"), machine("PHB", 3, "l40s", "AuthenticAMD")
    assert bus_bandwidth(two) > 1.2 * bus_bandwidth(three)


@pytest.mark.parametrize(("code", "count", "published"), [("PHB", 4, 27.3e9), ("SYS", 8, 28e9)])
def test_rtx_5090_through_host_memory_are_near_the_published_bandwidth(code: str, count: int, published: float) -> None:
    assert bus_bandwidth(machine(code, count, "5090", "AuthenticAMD")) == pytest.approx(published, rel=0.25)


def test_cards_without_peer_to_peer_share_the_slot_of_their_switch() -> None:
    alone, together = machine("PHB", 2, "2080 ti"), machine("PIX", 2, "2080 ti")
    assert bus_bandwidth(together) == pytest.approx(4e9, rel=0.2)
    assert bus_bandwidth(together) == pytest.approx(bus_bandwidth(alone) / 2, rel=0.05)


def test_sockets_of_an_unknown_cpu_are_as_far_apart_as_its_pcie_generation_suggests() -> None:
    old, new = machine("SYS", 4, "t4", vendor=""), machine("SYS", 4, "5090", vendor="")
    assert bus_bandwidth(old) < 7e9
    assert bus_bandwidth(new) > 20e9


def test_groups_that_run_at_once_share_the_link_between_sockets_but_not_their_nvlinks() -> None:
    pcie = machine("SYS", 8, "l40s")
    assert bus_bandwidth(pcie, "GPU0", "GPU4", concurrent=4) < 0.3 * bus_bandwidth(pcie, "GPU0", "GPU4")
    nvlink = machine("NV12", 8, "a100")
    assert bus_bandwidth(nvlink, "GPU0", "GPU1", concurrent=4) == bus_bandwidth(nvlink, "GPU0", "GPU1")


def nics(count: int, kind: str = "infiniband", gigabits: float = 400) -> tuple[Nic, ...]:
    return tuple(Nic(id=f"NIC{i}", kind=kind, bandwidth=gigabits * 1e9 / 8) for i in range(count))  # type: ignore[arg-type]


def test_between_nodes_the_adapters_together_carry_a_group_and_share_concurrent_ones() -> None:
    node = machine("NV18", 8, "h100", nics=nics(2))
    assert bus_bandwidth(node, nodes=3) == pytest.approx(93e9, rel=0.1)
    assert bus_bandwidth(node, nodes=2) == pytest.approx(2 * 93e9, rel=0.1)
    assert bus_bandwidth(node, op="all_gather", nodes=2) == pytest.approx(93e9, rel=0.1)
    assert bus_bandwidth(node, "GPU0", nodes=2, concurrent=8) == pytest.approx(93e9 / 8, rel=0.1)


def test_the_many_adapters_of_efa_are_joined_and_spare_infiniband_adapters_are_not() -> None:
    efa, ib = (machine("NV18", 8, "h100", nics=nics(32, kind, 100)) for kind in ("efa", "infiniband"))
    assert bus_bandwidth(efa, nodes=4) > 3 * bus_bandwidth(ib, nodes=4)


def test_one_gpu_cannot_send_faster_than_its_slot() -> None:
    assert bus_bandwidth(machine("NV12", 8, "a100", nics=nics(8)), "GPU0", nodes=2) < 25e9


def test_rdma_switched_off_falls_back_to_tcp() -> None:
    off = machine("NV18", 8, "h100", nics=nics(2), environment={"NCCL_IB_DISABLE": "1"})
    assert bus_bandwidth(off, nodes=2) < 0.1 * bus_bandwidth(machine("NV18", 8, "h100", nics=nics(2)), nodes=2)


def test_more_socket_threads_speed_tcp_up() -> None:
    slow = machine("NV12", 8, "a100", nics=nics(1, "ethernet", 100))
    fast = replace(slow, environment={"NCCL_SOCKET_NTHREADS": "4"})
    assert 2 < bus_bandwidth(fast, nodes=2) / bus_bandwidth(slow, nodes=2) < 3


def test_nodes_without_a_listed_adapter_are_taken_to_have_ten_gigabit_ethernet() -> None:
    assert bus_bandwidth(machine("NV2", 8, "v100"), nodes=4) == pytest.approx(1.16e9, rel=0.1)
    assert bus_bandwidth(machine("PIX", 8, "a100 pcie"), nodes=4) == pytest.approx(1.16e9, rel=0.1)


def test_beside_eight_recent_modules_a_hundred_gigabit_are_assumed_which_one_tcp_thread_does_not_fill() -> None:
    modules = machine("NV12", 8, "a100")
    assert assumed_ethernet(modules) == 12.5e9
    assert bus_bandwidth(modules, nodes=4) == pytest.approx(TCP_THREAD, rel=0.1)


def test_a_thousand_nodes_cost_more_latency_than_two() -> None:
    node = machine("NV18", 8, "h100", nics=nics(8))
    few, many = (collectives_of(node, ids(node), nodes=nodes)["all_reduce"] for nodes in (2, 1024))
    assert few.latency < many.latency < 1e-3


def test_cpu_processes_use_the_bandwidth_of_their_links() -> None:
    gpus = tuple(Gpu(id=f"CPU{i}", index=i) for i in range(2))
    link = Link(a="CPU0", b="CPU1", code="HOST", kind="host-memory", bandwidth=1e9, bandwidth_source="assumed")
    costs = collectives_of(Machine(gpus=gpus, links=(link,)), ("CPU0", "CPU1"))
    assert costs["all_reduce"].bus_bandwidth == 1e9
    assert costs["all_gather"].bus_bandwidth < 1e9
    with pytest.raises(AdvisorError):
        collectives_of(Machine(gpus=gpus, links=(replace(link, bandwidth=None),)), ("CPU0", "CPU1"))


def test_a_measured_link_is_believed_as_it_is() -> None:
    box = machine("PHB", 2, "a10g")
    measured = replace(box, links=(replace(box.links[0], bandwidth=5e9, bandwidth_source="measured"),))
    assert bus_bandwidth(measured) == pytest.approx(5e9, rel=0.01)


def test_an_unknown_bandwidth_is_an_error_that_says_what_to_type() -> None:
    bare = machine("PHB", 2, None)
    with pytest.raises(AdvisorError) as error:
        collectives_of(bare, ids(bare))
    assert "GPU0-GPU1" in error.value.message
    assert "--gpu" in error.value.hint


def test_a_link_that_the_source_lost_is_an_error() -> None:
    torn = replace(machine("PHB", 2, "a10g"), links=())
    with pytest.raises(AdvisorError, match="GPU0 and GPU1"):
        collectives_of(torn, ids(torn))


def test_the_fabric_of_a_machine_without_bandwidths_still_has_islands_and_a_ring() -> None:
    fabric = fabric_of(machine("PHB", 4, None))
    assert fabric.islands == (("GPU0", "GPU1", "GPU2", "GPU3"),)
    assert fabric.ring is not None
    assert fabric.ring.bandwidth is None
    assert fabric.collectives == {}


def test_the_fabric_of_one_gpu_or_none_is_empty() -> None:
    for count in (0, 1):
        fabric = fabric_of(machine("PHB", count, "a10g"))
        assert (fabric.ring, fabric.slowest_link, fabric.collectives) == (None, None, {})
        assert len(fabric.islands) == count


def test_the_fabric_of_several_nodes_counts_their_network() -> None:
    node = machine("NV18", 8, "h100", nics=nics(1))
    assert fabric_of(replace(node, nodes=4)).collectives["all_reduce"].bus_bandwidth < 50e9


def test_a_measured_cost_is_a_line_and_a_modelled_one_follows_its_curve() -> None:
    line = Collective(latency=1e-3, bus_bandwidth=1e9, source="measured")
    assert collective_seconds(line, "broadcast", 1e9, 2) == pytest.approx(1.001)
    curve = Collective(latency=0.0, bus_bandwidth=1e9, curve=((0.0, 0.0), (10.0, 1.0), (20.0, 1.5)))
    assert [collective_seconds(curve, "broadcast", size, 2) for size in (5, 10, 12, 40)] == [0.5, 1.0, 1.1, 2.5]


@given(st.floats(1, 1e12), st.sampled_from(OPS))
def test_one_rank_costs_nothing(size: float, op: str) -> None:
    cost = collectives_of(machine("PHB", 1, "a10g"), ("GPU0",))[op]  # type: ignore[index]
    assert collective_seconds(cost, op, size, 1) == 0.0  # type: ignore[arg-type]
    assert collective_seconds(cost, op, size, 2) == 0.0  # type: ignore[arg-type]


BOXES = [
    machine("NV18", 8, "h100", nics=nics(8)),
    machine("NV12", 4, "a100 80gb pcie"),
    with_codes(machine("SYS", 8, "v100", nics=nics(4, gigabits=100)), DGX1),
    with_codes(machine("NODE", 4, "3090"), {"NV4": ("01", "23")}),
    machine("PIX", 4, "a10g"),
    machine("PHB", 3, "5090", "AuthenticAMD"),
]


@settings(deadline=None)
@given(st.sampled_from(BOXES), st.sampled_from(OPS), st.integers(1, 40), st.integers(1, 8))
def test_time_grows_with_bytes_and_nothing_costs_nothing(box: Machine, op: str, power: int, nodes: int) -> None:
    cost = collectives_of(box, ids(box), nodes=nodes)[op]  # type: ignore[index]
    times = [collective_seconds(cost, op, size, len(box.gpus) * nodes) for size in (0, 2**power, 2 ** (power + 1))]  # type: ignore[arg-type]
    assert times[0] == 0.0
    assert 0.0 < times[1] < times[2]
    assert isfinite(times[2])


@settings(deadline=None)
@given(st.sampled_from(BOXES), st.integers(0, 27), st.floats(1, 20), st.integers(1, 64), st.sampled_from([1, 2, 5]))
def test_more_bandwidth_on_one_link_never_makes_a_collective_slower(
    box: Machine, which: int, factor: float, mebibytes: int, nodes: int
) -> None:
    links = list(box.links)
    link = links[which % len(links)]
    links[which % len(links)] = replace(link, bandwidth=factor * (link.bandwidth or 0))
    check_not_slower(box, replace(box, links=tuple(links)), mebibytes * MIB, nodes)


@settings(deadline=None)
@given(st.sampled_from(BOXES), st.floats(1, 20), st.integers(1, 1024), st.sampled_from([1, 2, 5]))
def test_more_bandwidth_on_all_links_and_adapters_never_makes_a_collective_slower(
    box: Machine, factor: float, mebibytes: int, nodes: int
) -> None:
    links = tuple(replace(link, bandwidth=factor * (link.bandwidth or 0)) for link in box.links)
    adapters = tuple(replace(nic, bandwidth=factor * (nic.bandwidth or 0)) for nic in box.nics)
    check_not_slower(box, replace(box, links=links, nics=adapters), mebibytes * MIB, nodes)


def check_not_slower(box: Machine, better: Machine, size: int, nodes: int) -> None:
    ranks = len(box.gpus) * nodes
    before, after = collectives_of(box, ids(box), nodes=nodes), collectives_of(better, ids(box), nodes=nodes)
    for op in OPS:
        slower = collective_seconds(before[op], op, size, ranks)
        assert collective_seconds(after[op], op, size, ranks) <= slower * (1 + 1e-9)


def test_the_drivers_answer_about_peer_access_stands_before_the_data_sheets() -> None:
    """Cards on one switch copy directly where the driver lets them, and through host memory where it refuses."""
    told = load_machine("2x l40s switch of 2")
    refused = load_machine("2x l40s switch of 2 no p2p")
    gpus = ("GPU0", "GPU1")
    assert ring_bandwidth(refused, gpus) < ring_bandwidth(told, gpus)

import io
from collections.abc import Callable
from itertools import combinations

import networkx as nx
import pytest
from msgspec.structs import replace

from advisor.rules.graph import graph_of, widest_path
from advisor.rules.links import kind_of_code, with_link_bandwidths
from advisor.rules.machine import Gpu, Link, Machine, Nic

Build = Callable[..., Machine]


def two_sockets(a: int, b: int) -> str:
    return "PIX" if a // 2 == b // 2 else "PHB" if a // 4 == b // 4 else "SYS"


def cube(a: int, b: int) -> str:
    return "NV2" if (a ^ b).bit_count() == 1 else "SYS"


def with_nics(machine: Machine, count: int, **facts: object) -> Machine:
    """Give GPU i the NIC i x count / GPUs on its own switch."""
    nics = tuple(Nic(id=f"NIC{i}", **({"kind": "infiniband", "bandwidth": 5e10} | facts)) for i in range(count))  # type: ignore[arg-type]
    codes = [
        (gpu.id, nic.id, "PIX" if gpu.index * count // len(machine.gpus) == number else "SYS")
        for gpu in machine.gpus
        for number, nic in enumerate(nics)
    ]
    links = tuple(Link(a=a, b=b, code=code, kind=kind_of_code(code) or "network") for a, b, code in codes)
    return with_link_bandwidths(replace(machine, nics=nics, links=machine.links + links))


def kinds(graph: "nx.Graph[str]") -> list[str]:
    return [kind for _, kind in graph.nodes(data="kind")]


def test_the_widest_path_goes_round_a_slow_link(machine: Build) -> None:
    box = machine(8, "v100", cube)
    assert widest_path(box, "GPU0", "GPU1") == ("GPU0", "GPU1")
    assert widest_path(box, "GPU0", "GPU3") in (("GPU0", "GPU1", "GPU3"), ("GPU0", "GPU2", "GPU3"))
    assert widest_path(replace(box, links=()), "GPU0", "GPU1") == ()


def test_one_switch_stands_between_gpus_that_share_nvlinks(machine: Build) -> None:
    graph = graph_of(machine(8, "a100", "NV12"))
    assert graph.nodes["NVSwitch"]["kind"] == "nvswitch"
    assert [n for n in graph["NVSwitch"] if n.startswith("GPU")] == [f"GPU{i}" for i in range(8)]
    assert graph.edges["GPU0", "NVSwitch"]["bandwidth"] == 300e9


def test_a_mesh_has_its_links(machine: Build) -> None:
    graph = graph_of(machine(8, "v100", cube))
    assert "NVSwitch" not in graph
    assert graph.edges["GPU0", "GPU1"]["kind"] == "nvlink"
    assert graph.edges["GPU0", "GPU3"]["kind"] == "inter-socket"


def test_switches_bridges_and_the_link_between_sockets_are_inferred(machine: Build) -> None:
    graph = graph_of(machine(8, "a10g", two_sockets))
    assert (kinds(graph).count("pcie-switch"), kinds(graph).count("host-bridge")) == (4, 2)
    assert sorted(graph.neighbors("pcie-switch 0")) == ["GPU0", "GPU1", "host-bridge 0"]
    between = [(a, b) for a, b, kind in graph.edges(data="kind") if kind == "inter-socket"]
    assert between == [("host-bridge 0", "host-bridge 1")]


def test_devices_of_one_numa_node_are_joined_where_nvlink_hides_their_pcie_path() -> None:
    gpus = tuple(Gpu(id=f"GPU{i}", index=i, name="a100", numa=i // 2) for i in range(4))
    links = tuple(Link(a=a.id, b=b.id, code="NV4", kind="nvlink") for a, b in combinations(gpus, 2))
    graph = graph_of(with_link_bandwidths(Machine(gpus=gpus, links=links)))
    assert {"GPU0", "GPU1", "numa-node 1"} <= set(graph.neighbors("numa-node 0"))
    assert graph.nodes["GPU2"]["parent"] == "numa-node 1"


def test_a_nic_hangs_on_the_switch_of_its_gpu_and_devices_that_nothing_lists_are_left_out() -> None:
    gpus = tuple(Gpu(id=f"GPU{i}", index=i, name="h100") for i in range(2))
    links = (
        Link(a="GPU0", b="NIC0", code="PIX", kind="pcie-switch"),
        Link(a="GPU1", b="NIC0", code="SYS", kind="inter-socket"),
        Link(a="GPU0", b="GPU1", code="NV18", kind="nvlink"),
        Link(a="GPU0", b="GPU9", code="SYS", kind="inter-socket"),
    )
    graph = graph_of(Machine(gpus=gpus, nics=(Nic(id="NIC0"),), links=links))
    assert {"GPU0", "NIC0"} <= set(graph.neighbors("pcie-switch 0"))
    assert "GPU9" not in graph


def test_a_measured_link_says_more_than_the_data_sheet(machine: Build) -> None:
    box = machine(4, "a100 80gb pcie", lambda a, b: "NV12" if a // 2 == b // 2 else "PHB")
    links = tuple(replace(k, bandwidth=1e9 * len(k.code), bandwidth_source="measured") for k in box.links)
    graph = graph_of(replace(box, links=links))
    assert graph.edges["GPU0", "GPU1"] == {"kind": "nvlink", "bandwidth": 4e9, "source": "measured"}
    assert graph.edges["GPU0", "host-bridge 0"] == {"kind": "host-bridge", "bandwidth": 3e9, "source": "measured"}
    assert graph_of(box).edges["GPU0", "host-bridge 0"]["source"] == "data sheet"


def test_several_hosts_are_joined_by_a_rail_for_each_nic(machine: Build) -> None:
    graph = graph_of(with_nics(machine(8, "h100", "NV18", nodes=4), 8), hosts=3)
    assert sorted(graph.neighbors("rail 5")) == ["host0/NIC5", "host1/NIC5", "host2/NIC5"]
    assert graph.edges["host0/NIC5", "rail 5"]["bandwidth"] == 5e10
    assert kinds(graph).count("gpu") == 24
    assert graph.nodes["host2/GPU7"]["host"] == 2
    assert nx.is_connected(graph)


@pytest.mark.parametrize(
    ("count", "facts"), [(2, {}), (8, {"kind": "ethernet"}), (8, {"kind": "efa"}), (8, {"kind": None})]
)
def test_hosts_without_an_adapter_for_each_gpu_or_without_rails_share_one_network(
    machine: Build, count: int, facts: dict[str, object]
) -> None:
    graph = graph_of(with_nics(machine(8, "h100", "NV18", nodes=2), count, **facts), hosts=2)
    assert "rail" not in kinds(graph)
    assert graph.degree["network"] == 2 * count


def test_slower_adapters_beside_those_of_the_gpus_are_no_rails(machine: Build) -> None:
    box = with_nics(machine(4, "h100", "NV6", nodes=2), 4)
    storage = Nic(id="storage", kind="infiniband", bandwidth=1.25e10)
    graph = graph_of(replace(box, nics=(*box.nics, storage)), hosts=2)
    assert kinds(graph).count("rail") == 4
    assert not any(kind == "network" for *_, kind in graph.edges("host0/storage", data="kind"))


def test_hosts_without_adapters_are_joined_all_the_same_and_no_more_are_drawn_than_there_are(machine: Build) -> None:
    box = replace(machine(2, "h100", "NV18", nodes=2), nics=())
    graph = graph_of(box, hosts=9)
    assert sorted(graph.neighbors("network")) == ["host0", "host1"]
    assert sorted(graph_of(replace(box, nodes=1), hosts=9).neighbors("host0")) == ["GPU0", "GPU1"]


@pytest.mark.parametrize("hosts", [1, 2])
def test_graphml_holds_all_that_the_graph_says(machine: Build, hosts: int) -> None:
    bare = Machine(gpus=(Gpu(id="GPU0", index=0), Gpu(id="GPU1", index=1)), nics=(Nic(id="mlx5_0"),))
    for box in (with_nics(machine(4, "a10g", two_sockets, nodes=2), 2), bare):
        graph = graph_of(box, hosts=hosts)
        file = io.BytesIO()
        nx.write_graphml(graph, file)
        file.seek(0)
        again = nx.read_graphml(file)
        assert dict(again.nodes(data=True)) == dict(graph.nodes(data=True))
        assert all(again.edges[edge] == graph.edges[edge] for edge in graph.edges)

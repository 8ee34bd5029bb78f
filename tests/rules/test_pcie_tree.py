from itertools import combinations

import pytest
from msgspec.structs import replace

from advisor.rules.links import with_link_bandwidths
from advisor.rules.machine import Gpu, Host, Link, Machine, Nic, PciNode
from advisor.rules.pcie_tree import Node, pcie_tree

GEN4_X16, GEN4_X8 = 31.5e9, 15.75e9


def bridge(address: str, parent: str, bandwidth: float | None = None) -> PciNode:
    return PciNode(id=address, kind="bridge", parent=parent, bandwidth=bandwidth)


def switched_pair() -> Machine:
    """Two GPUs and a two-port NIC below a switch of socket 0, a GPU on a root port of socket 1, a disk beside it."""
    pci = (
        PciNode(id="pci0000:16", kind="host-bridge", numa=0),
        bridge("0000:16:02.0", "pci0000:16"),  # root port
        bridge("0000:17:00.0", "0000:16:02.0", GEN4_X8),  # the switch's upstream port
        bridge("0000:18:00.0", "0000:17:00.0"),
        PciNode(id="0000:19:00.0", kind="gpu", parent="0000:18:00.0", bandwidth=GEN4_X16),
        bridge("0000:18:01.0", "0000:17:00.0"),
        PciNode(id="0000:1a:00.0", kind="gpu", parent="0000:18:01.0", bandwidth=GEN4_X16),
        bridge("0000:18:02.0", "0000:17:00.0"),
        PciNode(id="0000:1b:00.0", kind="nic", parent="0000:18:02.0", bandwidth=GEN4_X16),
        PciNode(id="0000:1b:00.1", kind="nic", parent="0000:18:02.0", bandwidth=GEN4_X16),
        PciNode(id="pci0000:64", kind="host-bridge", numa=1),
        bridge("0000:64:00.0", "pci0000:64", GEN4_X8),
        PciNode(id="0000:65:00.0", kind="gpu", parent="0000:64:00.0", bandwidth=GEN4_X16),
        PciNode(id="0000:66:00.0", kind="other", parent="pci0000:64"),
    )
    addresses = ("00000000:19:00.0", "0000:1A:00.0", "0000:65:00.0")
    gpus = tuple(Gpu(id=f"GPU{i}", index=i, name="a10g", bus_id=address) for i, address in enumerate(addresses))
    nics = tuple(Nic(id=f"mlx5_{i}", bus_id=f"0000:1b:00.{i}") for i in range(2))
    return Machine(gpus=gpus, nics=nics, pci=pci)


def nodes(machine: Machine) -> dict[str, Node]:
    return {node.id: node for node in pcie_tree(machine).nodes}


def test_chains_of_bridges_with_one_child_collapse_and_their_narrowest_link_counts() -> None:
    tree = nodes(switched_pair())
    assert set(tree) == {
        *("GPU0", "GPU1", "GPU2", "mlx5_0", "mlx5_1", "0000:17:00.0", "pci0000:16", "pci0000:64"),
        *("numa-node 0", "numa-node 1"),
    }
    assert [tree[gpu].parent for gpu in ("GPU0", "GPU1", "GPU2")] == ["0000:17:00.0", "0000:17:00.0", "pci0000:64"]
    assert (tree["GPU0"].bandwidth, tree["GPU2"].bandwidth) == (GEN4_X16, GEN4_X8)
    assert (tree["0000:17:00.0"].kind, tree["0000:17:00.0"].bandwidth) == ("pcie-switch", GEN4_X8)
    assert tree["pci0000:16"].parent == "numa-node 0"


def test_the_ports_of_one_card_hang_on_the_switch_itself() -> None:
    tree = nodes(switched_pair())
    assert {tree["mlx5_0"].parent, tree["mlx5_1"].parent} == {"0000:17:00.0"}


def test_the_numa_nodes_are_joined_at_the_speed_of_the_cpus() -> None:
    box = switched_pair()
    (between,) = pcie_tree(replace(box, host=Host(cpu="Intel(R) Xeon(R) Platinum 8480C"))).between
    assert ({between.a, between.b}, between.source) == ({"numa-node 0", "numa-node 1"}, "data sheet")
    assert pcie_tree(box).between[0].source == "assumed"


def test_a_device_without_an_address_hangs_in_its_numa_node() -> None:
    box = switched_pair()
    assert nodes(replace(box, nics=(Nic(id="eth0", numa=1),)))["eth0"].parent == "numa-node 1"


def test_a_virtual_machine_that_hides_numa_has_no_numa_nodes() -> None:
    box = switched_pair()
    hidden = tuple(replace(node, numa=-1) if node.numa is not None else node for node in box.pci)
    assert nodes(replace(box, pci=hidden))["pci0000:16"].parent is None


def test_a_tree_that_lacks_a_gpu_gives_way_to_the_codes() -> None:
    box = switched_pair()
    links = (Link(a="GPU0", b="GPU1", code="PIX", kind="pcie-switch"),)
    partial = replace(box, pci=box.pci[:6], links=links)
    assert nodes(partial)["GPU0"].parent == nodes(partial)["GPU1"].parent == "pcie-switch 0"


@pytest.mark.parametrize("parent", ["0000:17:00.0", "0000:ff:00.0"])
def test_a_loop_or_a_missing_parent_ends_the_chain(parent: str) -> None:
    box = switched_pair()
    odd = tuple(replace(node, parent=parent) if node.id == "0000:16:02.0" else node for node in box.pci)
    assert nodes(replace(box, pci=odd))["GPU0"].parent == "0000:17:00.0"


def test_every_node_comes_before_its_parent_and_devices_are_below_all_above_them() -> None:
    for box in (switched_pair(), replace(switched_pair(), pci=())):
        tree = pcie_tree(box)
        order = [node.id for node in tree.nodes]
        assert all(node.parent is None or order.index(node.id) < order.index(node.parent) for node in tree.nodes)
    below = pcie_tree(switched_pair()).below()
    assert below["numa-node 0"] == {"GPU0", "GPU1", "mlx5_0", "mlx5_1"}
    assert below["GPU2"] == {"GPU2"}


def test_the_way_up_from_an_inferred_switch_is_taken_to_be_as_wide_as_its_widest_device() -> None:
    gpus = tuple(Gpu(id=f"GPU{i}", index=i, name="a10g") for i in range(4))
    links = tuple(
        Link(a=a.id, b=b.id, code="PIX", kind="pcie-switch")
        if a.index // 2 == b.index // 2
        else Link(a=a.id, b=b.id, code="PXB", kind="pcie-switches")
        for a, b in combinations(gpus, 2)
    )
    tree = nodes(with_link_bandwidths(Machine(gpus=gpus, links=links)))
    assert tree["pcie-switch 0"].bandwidth == tree["GPU0"].bandwidth
    assert (tree["pcie-switch 1"].parent, tree["pcie-switch 1"].source) == ("pcie-switches 0", "assumed")

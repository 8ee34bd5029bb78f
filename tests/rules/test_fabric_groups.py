"""What the fabric says of parts of a machine."""

from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from advisor.rules.fabric import Fabric, GroupCost, collectives_of, fabric_of
from advisor.rules.machine import Gpu, Machine, Nic

Build = Callable[..., Machine]


def pairs(a: int, b: int) -> str:
    return "NV12" if a // 2 == b // 2 else "SYS"


def costs(fabric: Fabric) -> dict[tuple[str, ...], GroupCost]:
    return {group.gpus: group for group in fabric.groups}


def test_every_island_and_every_best_subset_has_its_costs(machine: Build) -> None:
    fabric = fabric_of(machine(4, "a100 80gb pcie", pairs))
    known = costs(fabric)
    assert set(known) == {
        ("GPU0", "GPU1"),
        ("GPU2", "GPU3"),
        ("GPU0", "GPU1", "GPU2"),
        ("GPU0", "GPU1", "GPU2", "GPU3"),
    }
    inside, across = known["GPU0", "GPU1"], known["GPU0", "GPU1", "GPU2", "GPU3"]
    assert inside.collectives["all_reduce"].bus_bandwidth > 5 * across.collectives["all_reduce"].bus_bandwidth


def test_groups_that_look_alike_have_equal_costs_and_those_that_do_not_their_own(machine: Build) -> None:
    box = machine(4, "a100 80gb pcie", pairs)
    slow = tuple(replace(k, bandwidth=5e10) if k.a == "GPU2" and k.b == "GPU3" else k for k in box.links)
    for one in (box, replace(box, links=slow)):
        for group in fabric_of(one).groups:
            assert group.collectives == collectives_of(one, group.gpus)


def test_a_group_of_one_host_costs_less_than_all_hosts(machine: Build) -> None:
    fabric = fabric_of(machine(8, "h100", "NV18", nodes=4))
    host = costs(fabric)[tuple(f"GPU{i}" for i in range(8))]
    assert host.collectives["all_reduce"].latency < fabric.collectives["all_reduce"].latency


def test_groups_without_bandwidths_have_no_costs_but_the_rest_is_there(machine: Build) -> None:
    box = machine(6, "a10g", lambda a, b: "PIX" if a // 2 == b // 2 else "NODE" if b < 4 else "SYS")
    unnamed = replace(
        box,
        gpus=tuple(Gpu(id=gpu.id, index=gpu.index) for gpu in box.gpus),
        links=tuple(replace(link, bandwidth=None, bandwidth_source=None) for link in box.links),
    )
    fabric = fabric_of(unnamed)
    assert fabric.groups == ()
    assert [level.kind for level in fabric.levels] == ["pcie-switch", "numa-node", "inter-socket"]
    assert [len(subset.gpus) for subset in fabric.subsets] == [2, 3, 4, 5, 6]
    assert fabric.uneven[0].what == "links"


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_lone_gpu_and_none_have_no_parts(machine: Build, gpus: int) -> None:
    fabric = fabric_of(machine(gpus, "a10g", "PHB"))
    assert (fabric.levels, fabric.subsets, fabric.groups, fabric.shared, fabric.nics, fabric.uneven) == ((),) * 6


def test_a_fabric_can_be_stored_and_read(machine: Build) -> None:
    box = machine(6, "3090", lambda a, b: "NV4" if (a, b) == (0, 1) else "PIX" if a // 2 == b // 2 else "SYS")
    box = replace(box, nics=(Nic(id="NIC0"),))
    fabric = fabric_of(box)
    assert fabric.uneven
    assert fabric.shared
    assert msgspec.json.decode(msgspec.json.encode(fabric), type=Fabric) == fabric

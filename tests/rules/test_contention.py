from collections.abc import Callable

import pytest
from msgspec.structs import replace

from advisor.rules.contention import nearest_nics, shared_links
from advisor.rules.links import kind_of_code
from advisor.rules.machine import Link, Machine, Nic

Build = Callable[..., Machine]


def two_sockets(a: int, b: int) -> str:
    return "PIX" if a // 2 == b // 2 else "PHB" if a // 4 == b // 4 else "SYS"


def with_nics(machine: Machine, *rows: str, kinds: tuple[str, ...] = ()) -> Machine:
    """Add the columns of NICs to a matrix: one row of codes a GPU."""
    count = len(rows[0].split())
    names = tuple(kinds) or (None,) * count
    links = [
        Link(a=gpu.id, b=f"NIC{i}", code=code, kind=kind)
        for gpu, row in zip(machine.gpus, rows, strict=True)
        for i, code in enumerate(row.split())
        if (kind := kind_of_code(code)) is not None
    ]
    nics = tuple(Nic(id=f"NIC{i}", kind=names[i]) for i in range(count))  # type: ignore[arg-type]
    return replace(machine, nics=nics, links=(*machine.links, *links))


def served(machine: Machine) -> dict[str, tuple[str, ...]]:
    return {near.gpu: near.nics for near in nearest_nics(machine)}


def test_gpus_share_the_way_up_from_their_switch_then_their_host_bridge_then_the_link_between_sockets(
    machine: Build,
) -> None:
    shared = shared_links(machine(8, "a10g", two_sockets))
    assert [one.kind for one in shared] == ["pcie-switch"] * 4 + ["host-bridge"] * 2 + ["inter-socket"]
    assert shared[0].gpus == ("GPU0", "GPU1")
    assert shared[4].gpus == ("GPU0", "GPU1", "GPU2", "GPU3")
    assert shared[-1].gpus == tuple(f"GPU{i}" for i in range(8))
    assert shared[0].bandwidth == pytest.approx(31.5e9, rel=0.01)
    assert shared[-1].bandwidth == 10e9


def test_gpus_on_nvswitch_share_nothing(machine: Build) -> None:
    assert shared_links(machine(8, "h100", "NV18")) == ()


def test_a_bridge_above_a_switch_with_the_same_gpus_is_not_named_twice(machine: Build) -> None:
    shared = shared_links(with_nics(machine(2, "a10g", "PIX"), "PHB", "PHB"))
    assert [(one.kind, one.nics) for one in shared] == [("pcie-switch", ())]


def test_a_lone_gpu_on_its_switch_shares_it_with_nobody(machine: Build) -> None:
    assert shared_links(with_nics(machine(2, "a10g", "SYS"), "PIX SYS", "SYS PIX"))[0].kind == "inter-socket"


def test_each_gpu_has_the_nic_of_its_own_switch(machine: Build) -> None:
    box = with_nics(
        machine(4, "h100", "NV6"), "PIX NODE SYS SYS", "NODE PIX SYS SYS", "SYS SYS PIX NODE", "SYS SYS NODE PIX"
    )
    assert served(box) == {f"GPU{i}": (f"NIC{i}",) for i in range(4)}


def test_gpus_with_the_same_choice_divide_it(machine: Build) -> None:
    pair = machine(2, "a100", "NV12")
    assert served(with_nics(pair, "PXB PXB", "PXB PXB")) == {"GPU0": ("NIC0",), "GPU1": ("NIC1",)}
    assert served(with_nics(pair, "PXB PXB PXB", "PXB PXB PXB")) == {"GPU0": ("NIC0",), "GPU1": ("NIC1", "NIC2")}
    assert served(with_nics(pair, "PXB", "PXB")) == {"GPU0": ("NIC0",), "GPU1": ("NIC0",)}


def test_four_gpus_use_two_far_nics_evenly_and_are_told_that_they_are_far(machine: Build) -> None:
    far = with_nics(machine(4, "a100", "NV4"), *["SYS SYS"] * 4)
    assert [near.nics for near in nearest_nics(far)] == [("NIC0",), ("NIC0",), ("NIC1",), ("NIC1",)]
    assert {near.kind for near in nearest_nics(far)} == {"inter-socket"}


def test_plain_ethernet_serves_only_where_there_is_nothing_else(machine: Build) -> None:
    pair = machine(2, "a100", "NV12")
    assert set(served(with_nics(pair, "PIX SYS", "PIX SYS", kinds=("ethernet", "infiniband"))).values()) == {("NIC1",)}
    assert set(served(with_nics(pair, "PIX", "PIX", kinds=("ethernet",))).values()) == {("NIC0",)}


def test_a_gpu_whose_cells_are_lost_is_served_by_nothing(machine: Build) -> None:
    assert list(served(with_nics(machine(2, "a100", "NV12"), "PIX PIX", "- -"))) == ["GPU0"]

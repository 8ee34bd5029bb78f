import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.rules.hardware import pcie_bandwidth
from advisor.rules.links import (
    attachment,
    host_bandwidth,
    kind_of_code,
    link_bandwidth,
    nvlink_count,
    with_link_bandwidths,
)
from advisor.rules.machine import Gpu, Host, Link, Machine, Nic, Pcie, Unknown


def gpu(name: str | None, pcie: Pcie | None = None, index: int = 0) -> Gpu:
    return Gpu(id=f"GPU{index}", index=index, name=name, pcie=pcie)


def link(code: str) -> Link:
    kind = kind_of_code(code)
    assert kind is not None
    return Link(a="GPU0", b="GPU1", code=code, kind=kind)


def bandwidth(code: str, name: str, cpu: str | None = None, pcie: Pcie | None = None) -> float | None:
    return link_bandwidth(link(code), gpu(name, pcie), gpu(name, pcie, 1), Host(cpu=cpu))[0]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("NV12", "nvlink"),
        ("PIX", "pcie-switch"),
        ("PXB", "pcie-switches"),
        ("PHB", "host-bridge"),
        ("NODE", "numa-node"),
        ("SYS", "inter-socket"),
        ("SOC", "inter-socket"),
        ("HOST", "host-memory"),
        ("XGMI", "xgmi"),
        ("X", None),
        ("NV", None),
        ("XXXX", None),
        ("", None),
    ],
)
def test_codes_have_their_kinds(code: str, kind: str | None) -> None:
    assert kind_of_code(code) == kind


@given(st.text())
def test_any_text_has_a_kind_or_none_and_a_count_only_if_it_is_nvlink(text: str) -> None:
    assert (nvlink_count(text) > 0) <= (kind_of_code(text) == "nvlink")


@pytest.mark.parametrize(
    ("code", "name", "expected"),
    [
        ("NV18", "NVIDIA H200", 478.1e9),
        ("NV12", "a100", 300e9),
        ("NV2", "v100", 51.6e9),
        ("NV4", "rtx 3090", 56.2e9),
        ("NV18", "b200", 956.2e9),
        ("PIX", "a10g", 31.5e9),
        ("PHB", "v100", 15.75e9),
        ("NODE", "rtx 5090", 63e9),
    ],
)
def test_data_sheets_give_the_bandwidth_of_a_pair(code: str, name: str, expected: float) -> None:
    assert bandwidth(code, name) == pytest.approx(expected, rel=0.01)


def test_an_idle_gpu_at_generation_1_is_judged_by_its_maximum() -> None:
    idle = Pcie(generation=1, width=16, generation_max=4, width_max=16)
    assert bandwidth("PHB", "a10g", pcie=idle) == pytest.approx(31.5e9, rel=0.01)


def test_a_narrow_slot_shows_in_the_current_width() -> None:
    narrow = Pcie(generation=4, width=4, generation_max=4, width_max=16)
    assert bandwidth("PHB", "rtx 3090", pcie=narrow) == pytest.approx(7.9e9, rel=0.01)


def test_pcie_runs_at_the_slower_end() -> None:
    fast, slow = gpu("rtx 5090"), gpu("v100 pcie", index=1)
    assert link_bandwidth(link("PHB"), fast, slow, Host())[0] == pytest.approx(15.75e9, rel=0.01)


def test_between_sockets_the_cpu_decides_but_never_above_pcie() -> None:
    assert bandwidth("SYS", "rtx 5090", "AMD EPYC 9554") == 16e9
    assert bandwidth("SYS", "v100", "INTEL(R) XEON(R) PLATINUM 8568Y+") == pytest.approx(15.75e9, rel=0.01)


def test_between_sockets_of_an_unknown_cpu_the_bandwidth_is_an_assumption() -> None:
    assert link_bandwidth(link("SYS"), gpu("a10g"), gpu("a10g", index=1), Host())[1] == "assumed"


def test_an_unnamed_gpu_with_a_known_capability_still_has_its_nvlink_rate() -> None:
    ends = [Gpu(id=f"GPU{i}", index=i, compute_capability="9.0") for i in range(2)]
    assert link_bandwidth(link("NV18"), ends[0], ends[1], Host()) == (pytest.approx(478.1e9, rel=0.01), "data sheet")


def machine(name: str | None, code: str, **facts: object) -> Machine:
    return Machine(gpus=(gpu(name), gpu(name, index=1)), links=(link(code),), **facts)  # type: ignore[arg-type]


def test_a_machine_gets_the_bandwidths_it_lacks() -> None:
    filled = with_link_bandwidths(machine("a100", "NV12")).links[0]
    assert (filled.bandwidth, filled.bandwidth_source) == (300e9, "data sheet")


def test_a_measured_bandwidth_is_kept() -> None:
    measured = Link(a="GPU0", b="GPU1", code="PIX", kind="pcie-switch", bandwidth=7e9, bandwidth_source="measured")
    two = Machine(gpus=(gpu("a10g"), gpu("a10g", index=1)), links=(measured,))
    assert with_link_bandwidths(two).links == (measured,)


def test_a_text_without_gpu_names_says_what_to_add() -> None:
    (unknown,) = with_link_bandwidths(machine(None, "PIX")).unknown
    assert "--gpu" in unknown.why


def test_a_gpu_without_a_data_sheet_is_named() -> None:
    (unknown,) = with_link_bandwidths(machine("NVIDIA Quantum 9000", "NV4")).unknown
    assert "NVIDIA Quantum 9000" in unknown.why


def test_naming_the_gpu_later_takes_the_complaint_back() -> None:
    other = Unknown(what="driver", why="no driver")
    bare = with_link_bandwidths(machine(None, "PIX", unknown=(other,)))
    named = Machine(gpus=(gpu("a10g"), gpu("a10g", index=1)), links=bare.links, unknown=bare.unknown)
    assert len(bare.unknown) == 2
    assert with_link_bandwidths(named).unknown == (other,)


def test_a_nic_link_is_held_back_by_its_port() -> None:
    nic = Nic(id="NIC0", kind="infiniband", bandwidth=12.5e9)
    pair = Link(a="GPU0", b="NIC0", code="PIX", kind="pcie-switch")
    filled = with_link_bandwidths(Machine(gpus=(gpu("h100"),), nics=(nic,), links=(pair,))).links[0]
    assert filled.bandwidth == 12.5e9


def test_copies_to_the_host_reach_most_of_pcie() -> None:
    assert host_bandwidth(gpu("NVIDIA H200")) == pytest.approx(55e9, rel=0.03)
    assert host_bandwidth(gpu(None)) is None


def test_a_link_seen_at_work_can_do_its_current_generation_an_idle_one_its_greatest() -> None:
    pcie = Pcie(generation=2, generation_max=4, width=4, width_max=16)
    idle = Gpu(id="GPU0", index=0, pcie=pcie, utilization=0.0)
    unseen, busy = replace(idle, utilization=None), replace(idle, utilization=0.99)
    assert attachment(idle) == attachment(unseen) == pcie_bandwidth(4, 4)
    assert attachment(busy) == pcie_bandwidth(2, 4)

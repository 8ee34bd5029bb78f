from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.rules.derived_links import nvlinks_between, with_derived_links
from advisor.rules.links import kind_of_code
from advisor.rules.machine import Distance, Gpu, Link, Machine, Nic, NvLink, PciNode

A, B, C = "0000:0a:00.0", "0000:0b:00.0", "0000:0c:00.0"
HIDDEN = "FFFFFFFF:FF:FF.0"


def to(remote: str | None, count: int = 1, kind: str | None = "gpu") -> tuple[NvLink, ...]:
    return (NvLink(active=True, remote=remote, remote_kind=kind),) * count  # type: ignore[arg-type]


def gpu(index: int, address: str | None, nvlinks: tuple[NvLink, ...] | None = (), **facts: object) -> Gpu:
    return Gpu(id=f"GPU{index}", index=index, bus_id=address, nvlinks=nvlinks, **facts)  # type: ignore[arg-type]


def codes(machine: Machine) -> dict[str, str]:
    return {f"{link.a}-{link.b}": link.code for link in with_derived_links(machine).links}


def test_direct_nvlinks_are_counted_by_pair_however_the_address_is_written() -> None:
    gpus = (gpu(0, A, to("00000000:0B:00.0", 2) + to(C)), gpu(1, B, to(A, 2)), gpu(2, C, to(A)))
    assert codes(Machine(gpus=gpus)) == {"GPU0-GPU1": "NV2", "GPU0-GPU2": "NV1"}


@pytest.mark.parametrize("remote", ["0000:c1:00.0", HIDDEN, None])
def test_through_a_switch_a_pair_has_the_fewer_links_of_both(remote: str | None) -> None:
    counts = (18, 18, 17)
    gpus = tuple(gpu(i, None, to(remote, count, "switch")) for i, count in enumerate(counts))
    assert codes(Machine(gpus=gpus)) == {"GPU0-GPU1": "NV18", "GPU0-GPU2": "NV17", "GPU1-GPU2": "NV17"}


@pytest.mark.parametrize("remote", [A, HIDDEN, "fffffff:ff:ff.0", None])
def test_links_to_an_end_that_is_hidden_leave_the_pair_open(remote: str | None) -> None:
    tree = (PciNode(id="pci0000:00", kind="host-bridge"), PciNode(id=A, kind="gpu", parent="pci0000:00"))
    tree += (replace(tree[1], id=B),)
    own = B if remote == A else remote
    machine = with_derived_links(Machine(gpus=(gpu(0, A, to(remote)), gpu(1, B, to(own))), pci=tree))
    assert machine.links == ()
    assert [gap.what for gap in machine.unknown] == ["links between GPU0-1"]


def test_an_inactive_link_and_one_to_a_cpu_join_no_gpus() -> None:
    off = (NvLink(active=False, remote=B, remote_kind="gpu"),)
    assert nvlinks_between(gpu(0, A, off), gpu(1, B, to(HIDDEN, 3, "cpu"))) == 0


NODES = {
    "pci0000:00": ("host-bridge", None, 0),
    "sw1": ("bridge", "pci0000:00", 0),
    "sw2": ("bridge", "sw1", 0),
    "0000:01:00.0": ("gpu", "sw1", 0),
    "0000:02:00.0": ("gpu", "sw1", 0),
    "0000:03:00.0": ("gpu", "sw2", 0),
    "0000:04:00.0": ("gpu", "pci0000:00", 0),
    "pci0000:40": ("host-bridge", None, 0),
    "0000:41:00.0": ("gpu", "pci0000:40", 0),
    "0000:41:00.1": ("nic", "pci0000:40", 0),
    "pci0000:80": ("host-bridge", None, 1),
    "0000:81:00.0": ("gpu", "pci0000:80", 1),
    "pci0000:c0": ("host-bridge", None, None),
    "0000:c1:00.0": ("gpu", "pci0000:c0", None),
}
TREE = tuple(PciNode(id=i, kind=k, parent=p, numa=n) for i, (k, p, n) in NODES.items())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("a", "b", "code"),
    [
        ("0000:01:00.0", "0000:02:00.0", "PIX"),
        ("0000:01:00.0", "0000:03:00.0", "PXB"),
        ("0000:01:00.0", "0000:04:00.0", "PHB"),
        ("0000:01:00.0", "0000:41:00.0", "NODE"),
        ("0000:01:00.0", "0000:81:00.0", "SYS"),
        ("0000:41:00.0", "0000:41:00.1", "PIX"),  # functions of one card
        ("0000:01:00.0", "0000:c1:00.0", None),  # the NUMA node is not known
        ("0000:01:00.0", "0000:ee:00.0", None),  # not in the tree
    ],
)
def test_the_pci_tree_gives_the_codes_of_nvidia_smi(a: str, b: str, code: str | None) -> None:
    wanted = {} if code is None else {"GPU0-GPU1": code}
    assert codes(Machine(gpus=(gpu(0, a), gpu(1, b)), pci=TREE)) == wanted
    wanted = {} if code is None else {"GPU0-NIC0": code}
    assert codes(Machine(gpus=(gpu(0, a, None),), nics=(Nic(id="NIC0", bus_id=b),), pci=TREE)) == wanted


def test_a_numa_node_of_which_the_device_tells_fills_the_trees_gap() -> None:
    gpus = (gpu(0, "0000:01:00.0"), gpu(1, "0000:c1:00.0", numa=1))
    assert codes(Machine(gpus=gpus, pci=TREE)) == {"GPU0-GPU1": "SYS"}


def test_the_tree_alone_does_not_tell_of_gpus_that_have_nvlinks_as_a_rule() -> None:
    known = [gpu(i, f"0000:0{i + 1}:00.0", None, name="NVIDIA A100-SXM4-40GB") for i in range(2)]
    machine = with_derived_links(Machine(gpus=tuple(known), pci=TREE))
    assert (machine.links, len(machine.unknown)) == ((), 1)
    plain = tuple(replace(one, name="NVIDIA L40S") for one in known)
    assert codes(Machine(gpus=plain, pci=TREE)) == {"GPU0-GPU1": "PIX"}


@pytest.mark.parametrize(
    ("weight", "code"), [(15, "XGMI"), (20, "PCIE"), (40, "PCIE"), (72, "PCIE"), (0, None), (None, None)]
)
def test_amds_weights_tell_the_kind_of_link(weight: int | None, code: str | None) -> None:
    gpus = (gpu(0, None, None), gpu(1, None, None))
    found = codes(Machine(gpus=gpus, distances=(Distance(a="GPU1", b="GPU0", weight=weight),)))
    assert found == ({} if code is None else {"GPU0-GPU1": code})


def test_a_loop_in_the_tree_of_a_stored_machine_ends() -> None:
    loop = (PciNode(id="x", kind="bridge", parent="y"), PciNode(id="y", kind="bridge", parent="x"))
    devices = tuple(PciNode(id=address, kind="gpu", parent="x") for address in (A, B))
    assert codes(Machine(gpus=(gpu(0, A), gpu(1, B)), pci=loop + devices)) == {"GPU0-GPU1": "PIX"}


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    addresses = [node.id for node in TREE if node.kind == "gpu"]
    chosen = draw(st.lists(st.sampled_from(addresses), max_size=5, unique=True))
    ends = st.sampled_from([*addresses, HIDDEN])
    links = st.none() | st.lists(st.builds(NvLink, remote=ends, remote_kind=st.sampled_from(["gpu", "switch", None])))
    name = st.sampled_from([None, "NVIDIA A100-SXM4-40GB", "NVIDIA L4"])
    gpus = [gpu(i, a, draw(links.map(lambda v: v and tuple(v))), name=draw(name)) for i, a in enumerate(chosen)]
    nics = (Nic(id="NIC0", bus_id="0000:41:00.1"),) if draw(st.booleans()) else ()
    pairs = [pair for pair in combinations([one.id for one in gpus], 2) if draw(st.booleans())]
    code = st.sampled_from(["NV4", "PHB", "SYS"])
    printed = [Link(a=a, b=b, code=(c := draw(code)), kind=kind_of_code(c) or "nvlink") for a, b in pairs]
    return Machine(gpus=tuple(gpus), nics=nics, pci=TREE, links=tuple(printed))


@settings(max_examples=100, deadline=None)
@given(machines())
def test_no_printed_link_is_changed_and_a_second_pass_adds_nothing(machine: Machine) -> None:
    derived = with_derived_links(machine)
    assert derived.links[: len(machine.links)] == machine.links
    assert len({frozenset((link.a, link.b)) for link in derived.links}) == len(derived.links)
    assert with_derived_links(derived) == derived
    assert replace(derived, links=machine.links, unknown=machine.unknown) == machine

"""Machines described in words."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.probe.load import load_machine
from advisor.rules.errors import AdvisorError
from advisor.rules.fabric import fabric_of
from advisor.rules.hardware import gpu_names
from advisor.rules.job import Job, assume_architecture
from advisor.rules.machine import Machine
from advisor.rules.recommend import recommend


def codes(text: str) -> dict[tuple[str, str], str]:
    return {(link.a, link.b): link.code for link in load_machine(text).links}


def test_a_pcie_server_has_its_gpus_behind_host_bridges() -> None:
    machine = load_machine("4x a10g pcie3x8")
    assert [gpu.name for gpu in machine.gpus] == ["NVIDIA A10G"] * 4
    assert {link.code for link in machine.links} == {"PHB"}
    assert machine.links[0].bandwidth == pytest.approx(7.88e9, rel=0.01)


def test_hosts_of_nvswitch_gpus_with_their_network() -> None:
    machine = load_machine("2x8 h100 nvswitch, ib 8x400")
    assert (machine.nodes, len(machine.gpus), len(machine.nics)) == (2, 8, 8)
    assert {link.code for link in machine.links} == {"NV18"}
    assert (machine.nics[0].kind, machine.nics[0].bandwidth) == ("infiniband", 5e10)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("8x 4090 pcie4, 2 sockets", {("GPU0", "GPU3"): "PHB", ("GPU3", "GPU4"): "SYS"}),
        ("4x a100 pcie pairs", {("GPU0", "GPU1"): "NV12", ("GPU1", "GPU2"): "PHB"}),
        ("2x 3090 bridge", {("GPU0", "GPU1"): "NV4"}),
        ("4x a100 mesh", {("GPU0", "GPU3"): "NV4"}),
        ("8x v100", {("GPU0", "GPU1"): "NV1", ("GPU0", "GPU4"): "NV2", ("GPU0", "GPU7"): "SYS"}),
        ("8x p100 nvlink", {("GPU0", "GPU3"): "NV1", ("GPU0", "GPU5"): "SYS"}),
        ("16x v100", {("GPU0", "GPU15"): "NV6"}),
        ("3x 3090 nvlink", {("GPU0", "GPU1"): "NV4", ("GPU1", "GPU2"): "PHB"}),
        ("4x l40s switch", {("GPU0", "GPU1"): "PIX", ("GPU1", "GPU2"): "PHB"}),
        ("8x mi300x", {("GPU0", "GPU7"): "XGMI"}),
        ("4x v100 cube", {("GPU0", "GPU1"): "NV1", ("GPU0", "GPU3"): "NV2", ("GPU2", "GPU3"): "NV2"}),
        ("4x a100 no nvlink", {("GPU0", "GPU3"): "PHB"}),
        ("8x l40s switch of 4, 2 sockets", {("GPU0", "GPU3"): "PIX", ("GPU3", "GPU4"): "SYS"}),
        ("8x l40s, 4 gpus per switch, 1 socket", {("GPU0", "GPU3"): "PIX", ("GPU3", "GPU4"): "PHB"}),
        ("6x l40s switch of 2, 2 sockets", {("GPU0", "GPU1"): "PIX", ("GPU1", "GPU2"): "PHB", ("GPU3", "GPU4"): "PIX"}),
        ("4x l40s pcie switch, 2 sockets", {("GPU0", "GPU1"): "PIX", ("GPU1", "GPU2"): "SYS"}),
        ("4x a100 pcie pairs, numa 4", {("GPU0", "GPU1"): "NV12", ("GPU1", "GPU2"): "SYS"}),
        ("2x 3090 bridge + 2x 4090", {("GPU0", "GPU1"): "NV4", ("GPU1", "GPU2"): "PHB", ("GPU2", "GPU3"): "PHB"}),
    ],
)
def test_the_words_become_what_nvidia_smi_would_print(text: str, pairs: dict[tuple[str, str], str]) -> None:
    assert pairs.items() <= codes(text).items()


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("4xa10g pcie3x8", "4x a10g pcie3x8"),
        ("4 x A10G PCIe gen3 x8", "4x a10g pcie3x8"),
        ("2x8 h100 nvswitch; IB 8x400Gb", "2x8 h100 nvswitch, ib 8x400"),
        ("2x8 a100 nvswitch ib200", "2x8 a100 nvswitch, ib 200"),
        ("8x4090", "8x 4090"),
        ("8x4090 pcie4", "8x 4090 pcie4"),
        ("4 x A100-80GB", "4x a100 80gb"),
        ("4x a100 80 GB", "4x a100 80gb"),
        ("8 H100", "8x h100"),
        ("2 nodes of 8x h100", "2x8 h100"),
        ("2 hosts x 8 h100", "2x8 h100"),
        ("2 servers with 8 h100", "2x8 h100"),
        ("2x 8x h100", "2x8 h100"),
        ("8x h100, 2 nodes", "2x8 h100"),
        ("2x4090+1x3090", "2x 4090 + 1x 3090"),
        ("8x h100 8x400 ib", "8x h100, ib 8x400"),
        ("8x h100 infiniband 8 x 400 Gb/s", "8x h100, ib 8x400"),
        ("8x h100, 8x ndr", "8x h100, ib 8x400"),
        ("2x 4090 25gbe eth", "2x 4090, ethernet 25"),
        ("2x 4090 pcie x8", "2x 4090 pcie4x8"),
        ("4x l40s dual-socket", "4x l40s, 2 sockets"),
        ("4x l40s 4 numa nodes", "4x l40s, numa 4"),
        ("4x l40s ram 512 GB", "4x l40s, 512GB ram"),
        ("4x l40s 0.5TB of memory", "4x l40s, 500gb ram"),
        ("4x l40s 64 vCPUs virtual machine", "4x l40s, 64 cpus, vm"),
        ("2x 3090 nvlink bridge", "2x 3090 pairs"),
    ],
)
def test_words_may_be_spelled_as_people_do(text: str, same: str) -> None:
    assert replace(load_machine(text), source="") == replace(load_machine(same), source="")


def test_memory_and_processors_are_taken_and_what_is_open_is_said() -> None:
    machine = load_machine("4x a10g, 192GB ram, 48 cpus")
    assert (machine.host.memory, machine.host.cpus) == (192 * 10**9, 48)
    assert {unknown.what for unknown in load_machine("2x8 h100").unknown} >= {"host memory", "network", "NVLink"}


def test_different_gpus_have_their_own_memory_and_slots() -> None:
    machine = load_machine("2x 4090 pcie4x8 + 1x 3090, pcie3, 64GB ram")
    assert [gpu.name for gpu in machine.gpus] == ["NVIDIA GeForce RTX 4090"] * 2 + ["NVIDIA GeForce RTX 3090"]
    slots = [(gpu.pcie.generation_max, gpu.pcie.width) for gpu in machine.gpus if gpu.pcie]
    assert slots == [(4, 8), (4, 8), (3, 16)]
    assert machine.host.memory == 64 * 10**9


def test_sockets_and_numa_nodes_hold_gpus_and_adapters_evenly() -> None:
    machine = load_machine("8x l40s, 2 sockets, numa 4, roce 2x200, eth 25")
    assert [gpu.numa for gpu in machine.gpus] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [(nic.kind, nic.numa) for nic in machine.nics] == [("roce", 0), ("roce", 2), ("ethernet", 0)]
    assert (machine.host.sockets, machine.host.numa_nodes) == (2, 4)
    assert {gpu.numa for gpu in load_machine("8x l40s").gpus} == {None}


@pytest.mark.parametrize(
    ("cpu", "name", "rate"),
    [
        ("epyc", "AMD EPYC", 16e9),
        ("amd epyc 7742", "AMD EPYC 7742", 16e9),
        ("epyc genoa", "AMD EPYC Genoa", 16e9),
        ("xeon sapphire rapids", "Intel Xeon Sapphire Rapids", 22e9),
        ("xeon ice lake", "Intel Xeon Ice Lake", 10e9),
        ("xeon platinum 8480C", "Intel Xeon Platinum 8480C", 22e9),
        ("intel xeon e5-2698 v4", "Intel Xeon E5-2698 v4", 6e9),
    ],
)
def test_the_processor_says_how_fast_its_sockets_are_linked(cpu: str, name: str, rate: float) -> None:
    machine = load_machine(f"2x h100 pcie, {cpu}, 2 sockets")
    assert machine.host.cpu == name
    assert (machine.links[0].bandwidth, machine.links[0].bandwidth_source) == (rate, "data sheet")


def test_no_p2p_is_what_the_driver_would_answer() -> None:
    access = load_machine("3x l40s no p2p").peer_access
    assert {(entry.a, entry.b) for entry in access if entry.capability == "read"} == {
        (f"GPU{a}", f"GPU{b}") for a in range(3) for b in range(3) if a != b
    }
    assert {entry.status for entry in access} == {"NS"}
    assert load_machine("3x l40s").peer_access == ()


def test_a_virtual_machine_is_one_only_where_the_words_say_so() -> None:
    virtual = [load_machine(text).host.virtual for text in ("2x l4 vm", "2x l4 bare metal", "2x l4")]
    assert virtual == [True, False, None]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("4x a10g pcie9", "pcie9"),
        ("4x nothing9", "nothing9"),
        ("4x 4090 nvlink", "no NVLink"),
        ("16x v100 nvlink", "15 others"),
        ("2x a10g, 5 sockets", "5 sockets"),
        ("999x a10g", "999 GPUs"),
        ("4x a10g ib", "'ib'"),
        ("8x h100 nvswich", "'nvswich'"),
        ("0x h100", "0 GPUs"),
        ("0x8 h100", "0 x 8 GPUs"),
        ("65x a10g", "65 GPUs"),
        ("40x a10g + 40x a10", "80 GPUs"),
        ("2x 4090 + 2x nothing9", "nothing9"),
        ("2x a100 + 2x h100 nvswitch", "different GPUs"),
        ("8x h100, 2 sockets, 4 sockets", "sockets: 2 and 4"),
        ("8x h100, ib 100, ib 200", "network twice"),
        ("8x l40s, numa 3, 2 sockets", "3 NUMA nodes"),
        ("8x h100 cube", "cube mesh"),
        ("8x h100 ib 0", "network"),
        ("8x h100 ib 999x400", "network"),
        ("8x l40s switch of 0", "is 0"),
        ("2x gb10", "alone in its host"),
        ("2x h100 " + "x" * 2000, "no file"),
    ],
)
def test_a_word_that_is_not_understood_is_named_with_examples(text: str, word: str) -> None:
    with pytest.raises(AdvisorError, match=word) as error:
        load_machine(text)
    assert error.value.hint


FABRIC = ["nvswitch", "nvlink", "mesh", "cube", "pairs", "no nvlink", "no p2p"]
SLOTS = ["pcie3x8", "pcie5", "x4", "switch", "switch of 4", "1 socket", "2 sockets", "numa 2", "numa 4"]
HOST = ["512GB ram", "64 cpus", "32 cores", "epyc", "xeon sapphire rapids", "vm", "ib 8x400", "roce 200", "eth 25"]
MORE = ["3 nodes", "+ 1x 3090", "+ 2x h100"]
WORDS = st.sampled_from([*FABRIC, *SLOTS, *HOST, *MORE])


@st.composite
def descriptions(draw: st.DrawFn) -> str:
    """Descriptions of all shapes; some contradict themselves."""
    hosts = draw(st.sampled_from(["", "", "2x", "3 nodes of "]))
    count = draw(st.integers(1, 8) | st.just(16))
    return f"{hosts}{count}x {draw(st.sampled_from(gpu_names()))} {', '.join(draw(st.lists(WORDS, max_size=4)))}"


def accepted(text: str) -> Machine | None:
    """Build the machine; None where the words are refused with a hint."""
    try:
        return load_machine(text)
    except AdvisorError as error:
        assert error.message
        assert error.hint
        return None


@given(descriptions())
@settings(max_examples=80, deadline=None)
def test_what_is_accepted_is_a_machine_that_everything_works_on(text: str) -> None:
    machine = accepted(text)
    if machine is None:
        return
    pairs = [frozenset((link.a, link.b)) for link in machine.links]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == {frozenset((a.id, b.id)) for a, b in combinations(machine.gpus, 2)}
    fabric = fabric_of(machine)
    assert {gpu for island in fabric.islands for gpu in island} == {gpu.id for gpu in machine.gpus}
    architecture, seq = assume_architecture(125e6)
    job = Job(params=125_000_000, trainable_params=125_000_000, seq=seq, global_batch=64, architecture=architecture)
    assert recommend(job, machine).candidates


@given(
    st.text(max_size=60)
    | st.lists(WORDS | st.text(max_size=8), max_size=8).map(lambda words: "2x l4 " + " ".join(words))
)
@settings(max_examples=200, deadline=None)
def test_random_words_are_refused_or_make_a_machine(text: str) -> None:
    machine = accepted(text or "x")
    assert machine is None or machine.gpus

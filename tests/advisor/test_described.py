"""Machines described in words."""

import pytest
from msgspec.structs import replace

from advisor.probe.load import load_machine
from advisor.rules.errors import AdvisorError


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
    ],
)
def test_words_may_be_spelled_as_people_do(text: str, same: str) -> None:
    assert replace(load_machine(text), source="") == replace(load_machine(same), source="")


def test_memory_and_processors_are_taken_and_what_is_open_is_said() -> None:
    machine = load_machine("4x a10g, 192GB ram, 48 cpus")
    assert (machine.host.memory, machine.host.cpus) == (192 * 10**9, 48)
    assert {unknown.what for unknown in load_machine("2x8 h100").unknown} >= {"host memory", "network", "NVLink"}


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
    ],
)
def test_a_word_that_is_not_understood_is_named_with_examples(text: str, word: str) -> None:
    with pytest.raises(AdvisorError, match=word) as error:
        load_machine(text)
    assert error.value.hint

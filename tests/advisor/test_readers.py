"""Any text that describes a machine."""

import random
import re
import string
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.probe.text.readers import READERS, machine_from_text
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Machine

FIXTURES = Path(__file__).parents[2] / "fixtures"
CAPTURE = FIXTURES / "captures/2xh200"
FILES = [f for folder in (FIXTURES / "topologies", CAPTURE) for f in sorted(folder.iterdir())]
TEXTS = [file.read_bytes().decode() for file in FILES if file.suffix in (".txt", ".xml")]
PARTS = ("topo-m.txt", "nvidia-smi-q.txt", "nvlink.txt", "topo-p2p.txt")


def test_one_text_may_hold_the_output_of_several_commands() -> None:
    text = "\n".join((CAPTURE / name).read_text() for name in PARTS)
    # the capture was made anonymous, differently in each file
    machine = machine_from_text(re.sub(r" \(UUID: [^)]*\)", "", text), "a log")
    assert [link.code for link in machine.links] == ["NV18"]
    assert len(machine.peer_access) == 10
    assert machine.contradictions == ()
    assert machine.source == "a log"
    for gpu in machine.gpus:
        assert (gpu.name, gpu.numa, gpu.fabric_state, len(gpu.nvlinks or ())) == ("NVIDIA H200", 0, "completed", 18)


def test_the_matrix_gives_gpus_their_ids_and_only_it_is_in_the_order_of_its_columns() -> None:
    matrix = "\tGPU2\tGPU5\nGPU2\t X \tSYS\nGPU5\tSYS\t X \n"
    machine = machine_from_text(f"{matrix}GPU 5: NVIDIA A100\n Link 0: 25 GB/s\n", "a log")
    assert [(gpu.id, gpu.nvlinks is None) for gpu in machine.gpus] == [("GPU2", True), ("GPU5", False)]


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("nvlink.txt", lambda machine: machine.gpus[1].nvlinks),
        ("topo-p2p.txt", lambda machine: machine.peer_access),
        ("nvidia-smi-q.txt", lambda machine: machine.gpus[0].bus_id),
        ("nccl-topo.xml", lambda machine: machine.pci),
        ("nccl-graph.xml", lambda machine: machine.nccl_graphs),
    ],
)
def test_a_file_of_each_kind_is_a_machine(name: str, holds: Callable[[Machine], object]) -> None:
    assert holds(machine_from_text((CAPTURE / name).read_text(), name))


@pytest.mark.parametrize(
    ("text", "looks", "hint"),
    [
        (" \n", "empty", "topo -m"),
        ("<nvidia_smi_log>\n<gpu>", "without -x|XML", "nvidia-smi -q"),
        ("\t Link 0: 25 GB/s\n", "nvlink", "nvlink -s"),
        ("GPU0\tX\tCNS\n", "topo -p2p", "topo -p2p r"),
        ("==== ROCm System Management Interface ====\n", "rocm-smi", "--showtopo"),
        ("====NVSMI LOG====\n\nAttached GPUs : 2\n", "nvidia-smi -q", "nvidia-smi -q"),
        ("| NVIDIA-SMI 550.54 |\n", "without `topo -m`", "topo -m"),
        ("The -i command line argument must be used in conjunction with -n or -p.\n", "an error of", "topo -m"),
        ("bash: nvidia-smi: command not found\n", "did not run", "topo -m"),
        ("Dear all,\n", "nor another output", "topo -m"),
    ],
)
def test_a_text_that_tells_nothing_is_named_with_what_to_type(text: str, looks: str, hint: str) -> None:
    with pytest.raises(AdvisorError, match=looks) as error:
        machine_from_text(text, "a mail")
    assert hint in error.value.hint


def only_ours(text: str) -> None:
    """Read a text; any exception but AdvisorError fails the test."""
    try:
        machine = machine_from_text(text, "fuzz")
    except AdvisorError as error:
        assert error.message
        assert error.hint
    else:
        assert isinstance(machine, Machine)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(), st.text(alphabet=string.printable), st.binary().map(lambda b: b.decode(errors="replace"))))
def test_any_text_is_a_machine_or_an_error_of_ours(text: str) -> None:
    only_ours(text)


WORDS = (
    "GPU0 GPU1 X OK CNS XGMI 0 15 NV12 : = \n \t <system> <cpu numaid='0'> </system> <graphs> <graph id='0'> GB/s "
    "GPU[0] GPU\x200: Link\x200: Link\x201: 25 N/A (UUID: GPU-1) -p2p r Weight\x20between\x20two\x20GPUs "
    "Link\x20Type\x20between\x20two\x20GPUs (Topology) Numa\x20Node: "
    "GPU\x2000000000:3B:00.0\n Total FB\x20Memory\x20Usage"
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(re.split(" ", WORDS)), max_size=60).map(" ".join))
def test_any_order_of_known_words_is_a_machine_or_an_error_of_ours(text: str) -> None:
    only_ours(text)


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 10))
def test_a_damaged_text_is_a_machine_or_an_error_of_ours(chance: random.Random, times: int) -> None:
    text = chance.choice(TEXTS)
    for _ in range(times):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.randrange(60))
        change = chance.choice(["drop", "double", "noise", "end", "lines"])
        if change == "drop":
            text = text[:start] + text[end:]
        elif change == "double":
            text = text[:end] + text[start:]
        elif change == "noise":
            text = text[:start] + chr(chance.randrange(1, 256)) + text[start + 1 :]
        elif change == "end":
            text = text[: max(end, len(text) // 2)]
        else:
            text = "".join(line for line in text.splitlines(keepends=True) if chance.random() < 0.9)
    only_ours(text)


LONG = 1_000_000  # characters
GARBAGE = (
    *(" ", "\n", "0", "0,", " : \n", "[1;", "\x1b[", "deadbeef", "<pci>", "<system><cpu ", "Link 0: "),
    *("GPU0 X ", "GPU0 0 15 ", "GPU0 GPU1\nGPU0 X ", "GPU0 GPU1\nGPU0 X OK\n"),
    *("GPU 0: a Link 0: 25 GB/s\n", "GPU 0: a (UUID: ", "Weight between two GPUs\nGPU0 GPU1\nGPU0 0 15\n"),
    *("GPU 00000000:00:06.0\n", "GPU 00000000:00:06.0\n  Processes\n    Process ID : 1\n"),
)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_megabyte_of_garbage_is_read_or_refused(garbage: str) -> None:
    """A reader that takes quadratic time shows: it needs minutes here."""
    only_ours(garbage * (LONG // len(garbage)))


def test_every_reader_has_its_own_name() -> None:
    assert len({reader.what for reader in READERS}) == len(READERS)

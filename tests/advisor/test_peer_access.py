"""Matrices of `nvidia-smi topo -p2p`."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.probe.text.peer_access import read_peer_access
from advisor.rules.machine import Machine

FIXTURES = Path(__file__).parents[2] / "fixtures"
LEGEND = "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n  U    = Unknown\n"
PLAIN = " \tGPU0\tGPU1\tGPU2\t\n GPU0\tX\tOK\tCNS\t\n GPU1\tOK\tX\tNS\t\n GPU2\tTNS\tU\tX\t\n"
CELLS = {
    ("GPU0", "GPU1"): "OK",
    ("GPU0", "GPU2"): "CNS",
    ("GPU1", "GPU0"): "OK",
    ("GPU1", "GPU2"): "NS",
    ("GPU2", "GPU0"): "TNS",
    ("GPU2", "GPU1"): "U",
}


def read(text: str) -> Machine:
    machine = read_peer_access(text, "a mail")
    assert machine is not None
    return machine


def cells(text: str) -> dict[tuple[str, str], str]:
    return {(access.a, access.b): access.status for access in read(text).peer_access}


QUIRKS: dict[str, Callable[[str], str]] = {
    "as printed": lambda t: t,
    "escape codes": lambda t: t.replace("GPU0", "\x1b[4mGPU0", 1).replace("\t\n", "\t\x1b[0m\n", 1),
    "no leading tab": lambda t: t.lstrip(),
    "columns": lambda t: t.expandtabs(8),
    "spaces in one": lambda t: re.sub("[ \t]+", " ", t),
    "crlf": lambda t: t.replace("\n", "\r\n"),
    "all newlines lost": lambda t: t.replace("\n", " "),
    "a wrapped row": lambda t: t.replace("\tCNS", "\n\tCNS"),
    "a time before each line": lambda t: re.sub("^", "2026-01-02 03:04:05 INFO ", t, flags=re.MULTILINE),
    "a quote": lambda t: re.sub("^", "> ", t, flags=re.MULTILINE),
    "bars": lambda t: t.replace("\t", " | "),
    "a legend": lambda t: t + LEGEND,
    "glued cells": lambda t: t.replace("X\tOK", "XOK"),
    "a list of the GPUs": lambda t: f"GPU 0: NVIDIA L4\nGPU 1: NVIDIA L4\n{t}",
    "a matrix of topo -m": lambda t: f"\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n\n{t}",
    "a long log": lambda t: 9000 * "some words of a log\n" + t + 9000 * "more words\n",
}


@pytest.mark.parametrize("quirk", QUIRKS)
def test_each_direction_is_read_through(quirk: str) -> None:
    assert cells(QUIRKS[quirk](PLAIN)) == CELLS
    assert [gpu.id for gpu in read(PLAIN).gpus] == ["GPU0", "GPU1", "GPU2"]


@pytest.mark.parametrize(
    ("heading", "capability"),
    [
        ("$ nvidia-smi topo -p2p r", "read"),
        ("== topo -p2p w", "write"),
        ("nvidia-smi topo --p2pstatus n", "nvlink"),
        ("`nvidia-smi topo -p2p a`:", "atomics"),
        ("# topo -p2p p", "pcie"),
        ("", "read"),
    ],
)
def test_the_command_above_tells_the_capability(heading: str, capability: str) -> None:
    assert {access.capability for access in read(f"{heading}\n{PLAIN}").peer_access} == {capability}


def test_one_text_may_hold_the_matrices_of_all_capabilities() -> None:
    found = read((FIXTURES / "captures/2xh200/topo-p2p.txt").read_text()).peer_access
    assert [access.capability for access in found[::2]] == ["read", "write", "nvlink", "atomics", "pcie"]
    assert [access.status for access in found[::2]] == ["OK", "OK", "OK", "OK", "NS"]


def test_the_first_of_two_matrices_of_one_capability_is_taken_and_it_is_said() -> None:
    machine = read(PLAIN + PLAIN.replace("CNS", "OK"))
    assert {(p.a, p.b): p.status for p in machine.peer_access} == CELLS
    assert "the first was taken" in machine.unknown[0].why


def test_cells_that_the_text_lost_are_absent() -> None:
    assert cells(PLAIN[: PLAIN.index("\tU")]) == {p: s for p, s in CELLS.items() if p[0] != "GPU2"}
    hole = read(PLAIN.replace("GPU0\tX\tOK\tCNS", "GPU0\tX\tCNS"))
    assert ("GPU0", "GPU1") not in {(access.a, access.b) for access in hole.peer_access}
    assert "row of GPU0" in hole.unknown[0].why


@pytest.mark.parametrize("text", ["", LEGEND, "GPU0 is OK\n", "\tGPU0\tGPU1\nGPU0\tX\tPHB\nGPU1\tPHB\tX\n"])
def test_a_text_without_such_a_matrix_is_left_to_others(text: str) -> None:
    assert read_peer_access(text, "a mail") is None

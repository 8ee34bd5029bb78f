"""What `rocm-smi --showtopo` prints."""

import re
from pathlib import Path

import pytest

from advisor.probe.text.rocm import read_rocm_topology
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Distance, Machine

FIXTURES = Path(__file__).parents[2] / "fixtures/topologies"
WHOLE = (FIXTURES / "rocm-mi210-4gpu-no-brackets.txt").read_text()
PARTITIONS = (FIXTURES / "rocm-mi300a-tpx-12part-errors.txt").read_text()


def read(text: str) -> Machine:
    machine = read_rocm_topology(text, "a mail")
    assert machine is not None
    return machine


def test_all_sections_are_read() -> None:
    machine = read(WHOLE)
    assert machine.distances[0] == Distance(a="GPU0", b="GPU1", weight=15, hops=1, link_type="XGMI")
    assert len(machine.distances) == len(machine.links) == 6
    assert {link.kind for link in machine.links} == {"xgmi"}
    assert [(gpu.id, gpu.numa, gpu.numa_affinity) for gpu in machine.gpus][3] == ("GPU3", 3, 3)


@pytest.mark.parametrize("label", ["GPU[{}]", "GPU {}", "GPU{}"])
def test_gpus_are_known_by_any_label(label: str) -> None:
    text = re.sub(r"GPU (\d)", lambda match: label.format(match[1]), WHOLE)
    assert read(text) == read(WHOLE)


def test_links_of_which_the_type_is_not_told_are_no_links_and_it_is_said() -> None:
    machine = read(PARTITIONS)
    types = [distance.link_type for distance in machine.distances]
    assert (types.count("XGMI"), types.count("XXXX"), len(machine.links)) == (54, 12, 54)
    assert "12 pairs" in machine.unknown[0].why
    assert [distance.weight for distance in machine.distances] == [None] * 66


def test_cells_behind_a_wide_gap_stand_under_their_names() -> None:
    assert ("GPU9", "GPU11", "XGMI") in {(link.a, link.b, link.code) for link in read(PARTITIONS).links}


def test_numa_nodes_of_partitions_differ_from_their_affinity() -> None:
    assert (read(PARTITIONS).gpus[4].numa, read(PARTITIONS).gpus[4].numa_affinity) == (0, 3)


def test_a_system_without_numa_nodes_has_none() -> None:
    assert read("GPU[0] : (Topology) Numa Node: -1\n").gpus[0].numa is None


def test_the_name_of_a_card_is_read() -> None:
    assert read(f"GPU[1]\t\t: Card Series: \t\tAMD Instinct MI210\n{WHOLE}").gpus[1].name == "AMD Instinct MI210"


@pytest.mark.parametrize("section", ["Weight", "Hops", "Link Type"])
def test_a_section_stands_alone(section: str) -> None:
    start = WHOLE.index(section)
    machine = read(WHOLE[start : WHOLE.index("\n\n", start) + 1])
    known = [name for name in ("weight", "hops", "link_type") if getattr(machine.distances[0], name) is not None]
    assert known == [section.lower().replace(" ", "_")]
    assert len(machine.distances) == 6


def test_a_text_that_ends_anywhere_says_nothing_that_the_whole_does_not() -> None:
    whole = {(d.a, d.b): d for d in read(WHOLE).distances}
    for end in range(WHOLE.index("GPU1"), len(WHOLE), 7):
        machine = read_rocm_topology(WHOLE[:end], "a mail")
        for distance in machine.distances if machine else ():
            told = whole[distance.a, distance.b]
            assert distance.weight in (None, told.weight)
            assert distance.hops in (None, told.hops)
            assert distance.link_type in (None, told.link_type)


def test_a_header_that_was_cut_keeps_what_stands_under_it() -> None:
    cut = "\n".join(line[:46] if line[:1] in "G " else line for line in WHOLE.splitlines())
    assert {(d.a, d.b) for d in read(cut).distances} == {(d.a, d.b) for d in read(WHOLE).distances}


def test_cells_that_contradict_each_other_are_an_error_that_names_both() -> None:
    with pytest.raises(AdvisorError, match="15 and 30 stand between GPU0 and GPU1"):
        read(WHOLE.replace("GPU1   15 ", "GPU1   30 "))


@pytest.mark.parametrize(
    "text", ["", "GPU0 GPU1\nGPU0 0 15\nGPU1 15 0\n", "=== ROCm System Management Interface ===\n"]
)
def test_a_text_that_tells_nothing_of_links_is_left_to_others(text: str) -> None:
    assert read_rocm_topology(text, "a mail") is None

"""Link matrices as people paste them."""

import json
import random
import re
import textwrap
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.probe.text.topo_m import TopoMatrix, machine_from_topo_m, parse_topo_m
from advisor.rules.errors import AdvisorError

TEXTS = Path(__file__).parents[2] / "fixtures" / "topologies"
PLAIN = (
    "\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV12\tSYS\tPIX\t0-3,8\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tNODE\tSYS\t0-3,8\t0\t\tN/A\n"
    "GPU2\tSYS\tNODE\t X \tPHB\t4-7\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\tPHB\t X \t\t\t\t\n"
)
TRUTHS = [path for path in sorted(TEXTS.glob("*.json")) if json.loads(path.read_bytes())["kind"] == "topo-m"]
REAL = [path.with_suffix(".txt").read_bytes().decode() for path in TRUTHS]
EXPECTED = parse_topo_m(PLAIN)
CODES = ("NV1", "NV4", "NV12", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS")


def test_a_plain_matrix_is_read_whole() -> None:
    assert (
        TopoMatrix(
            gpus=("GPU0", "GPU1", "GPU2"),
            nics=("NIC0",),
            links=(
                ("GPU0", "GPU1", "NV12"),
                ("GPU0", "GPU2", "SYS"),
                ("GPU0", "NIC0", "PIX"),
                ("GPU1", "GPU2", "NODE"),
                ("GPU1", "NIC0", "SYS"),
                ("GPU2", "NIC0", "PHB"),
            ),
            cpu_affinity={"GPU0": (0, 1, 2, 3, 8), "GPU1": (0, 1, 2, 3, 8), "GPU2": (4, 5, 6, 7)},
            numa={"GPU0": 0, "GPU1": 0, "GPU2": 1},
            gpu_numa_id={"GPU0": None, "GPU1": None, "GPU2": None},
        )
        == EXPECTED
    )


def expanded(text: str) -> str:
    return "\n".join(line.expandtabs(8) for line in text.splitlines())


def wrapped(text: str, width: int) -> str:
    """Break lines as a terminal of that width does, also inside a word."""
    lines = (line.ljust(width) if len(line) > width else line for line in expanded(text).splitlines())
    return "\n".join(line[at : at + width] for line in lines for at in range(0, len(line) or 1, width))


QUIRKS = {
    "tabs expanded to spaces": expanded,
    "escape codes in the header": lambda t: "\t\x1b[4m" + t[1:].replace("ID\n", "ID\x1b[0m\n", 1),
    "escape codes that lost their ESC": lambda t: "\t[4m" + t[1:].replace("ID\n", "ID[0m\n", 1),
    "a lost leading tab": lambda t: t.lstrip("\t"),
    "carriage returns and a byte-order mark": lambda t: "\ufeff" + t.replace("\n", "\r\n"),
    "a quote before each line": lambda t: re.sub("^", "> ", t, flags=re.MULTILINE),
    "a time before each line": lambda t: re.sub("^", "2026-01-02 03:04:05 INFO ", t, flags=re.MULTILINE),
    "a code fence, a prompt and a comment": lambda t: (
        f"# my box\n```\nroot@node3:~$ nvidia-smi topo -m\n{t}```\n$ exit\n"
    ),
    "a quote of a quote": lambda t: re.sub("^", "> > ", t, flags=re.MULTILINE),
    "line numbers": lambda t: "".join(f"{number:6}\t{line}\n" for number, line in enumerate(t.splitlines(), 98)),
    "the name of a rank": lambda t: re.sub("^", "[1,0]<stdout>:", t, flags=re.MULTILINE),
    "the name of a host": lambda t: re.sub("^", "gpu-node1 | ", t, flags=re.MULTILINE),
    "prose before it": lambda t: f"GPU0 X marks itself. mlx5_0 is next to GPU3\n\n{t}",
    "a matrix of topo -p2p before it": lambda t: f"\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n\n{t}",
    "a string of JSON": json.dumps,
    "spaces in one": lambda t: re.sub("[ \t]+", " ", t),
    "dashes of a word processor": lambda t: t.replace("0-3", "0\u20133").replace("4-7", "4\u20147"),
    "no-break spaces": lambda t: expanded(t).replace("  ", "\xa0 "),
    "all newlines lost": lambda t: "$ nvidia-smi topo -m " + t.replace("\n", " "),
    "a table with bars": lambda t: re.sub("^|$", "|", t.replace("\t", " | "), flags=re.MULTILINE),
    "a paragraph of 60 columns": lambda t: textwrap.fill(expanded(t).replace("\n", " "), 60),
    **{f"a terminal of {width} columns": lambda t, width=width: wrapped(t, width) for width in range(41, 82)},
    "a legend behind it": lambda t: f"{t}\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n",
    "a legend without its title": lambda t: f"{t}\n  X    = Self\n  PIX  = Connection\n  NV#  = Connection\n",
    "a line between header and rows": lambda t: t.replace("ID\n", f"ID\n{'-' * 70}\n", 1),
    "a long log around it": lambda t: 9000 * "some words of a log\n" + t + 9000 * "more words\n",
}

RENDERINGS = (
    "tabs expanded to spaces",
    "a lost leading tab",
    "carriage returns and a byte-order mark",
    "a quote before each line",
    "a code fence, a prompt and a comment",
    "all newlines lost",
    "a table with bars",
    "a legend behind it",
)


@pytest.mark.parametrize("quirk", QUIRKS)
def test_the_same_matrix_is_read_through(quirk: str) -> None:
    assert parse_topo_m(QUIRKS[quirk](PLAIN)) == EXPECTED


@pytest.mark.parametrize("path", TRUTHS, ids=lambda path: path.stem)
def test_a_real_text_is_read_exactly(path: Path) -> None:
    truth = json.loads(path.read_text())
    if truth["kind"] != "topo-m":
        return
    text = path.with_suffix(".txt").read_bytes().decode()
    if truth["gpus"] == 0:
        with pytest.raises(AdvisorError):
            parse_topo_m(text)
        return
    found = parse_topo_m(text)
    assert (len(found.gpus), len(found.nics)) == (truth["gpus"], truth["nics"])
    assert sorted(found.links) == sorted(map(tuple, truth["links"]))
    assert found.gpu_numa_id == truth.get("gpu_numa_id")
    for name in ("cpu_affinity", "numa"):
        cells = getattr(found, name)
        as_read = cells and {gpu: list(c) if isinstance(c, tuple) else c for gpu, c in cells.items()}
        assert as_read == truth[name]


def test_the_first_of_several_matrices_is_taken_and_it_is_said() -> None:
    found = parse_topo_m(f"{PLAIN}\n$ nvidia-smi topo -mp\n{PLAIN.replace('NV12', 'PHB')}")
    assert found == replace(EXPECTED, others=1)
    machine = machine_from_topo_m(PLAIN * 2, "a log")
    assert "the text holds 2 matrices; the first was taken" in {unknown.why for unknown in machine.unknown}


def test_names_of_gpus_and_the_driver_are_read_where_the_text_has_them() -> None:
    text = f"Nvidia driver version: 550.54.15\nGPU 0: NVIDIA A10G (UUID: GPU-0)\n{PLAIN}GPU 1: NVIDIA A10G\n"
    found = parse_topo_m(text)
    assert found == replace(EXPECTED, gpu_names={"GPU0": "NVIDIA A10G", "GPU1": "NVIDIA A10G"}, driver="550.54.15")


def test_a_header_that_was_cut_gives_the_links_under_it() -> None:
    found = parse_topo_m(
        "        GPU0    GPU1    GP\nGPU0     X      NV1     PI\nGPU1    NV1      X      SY\nGPU2    PIX     SYS\n"
    )
    assert found.links == (("GPU0", "GPU1", "NV1"), ("GPU0", "GPU2", "PIX"), ("GPU1", "GPU2", "SYS"))


def test_cells_that_were_left_out_are_absent() -> None:
    found = parse_topo_m(
        "GPU0 GPU1 ... GPU7 CPU Affinity\nGPU0 X NV1 ... SYS 0-3\nGPU1 NV1 X ...\nGPU7 SYS ... X 4-7\n"
    )
    assert found.gpus == ("GPU0", "GPU1", "GPU7")
    assert found.links == (("GPU0", "GPU1", "NV1"), ("GPU0", "GPU7", "SYS"))
    assert found.cpu_affinity == {"GPU0": (0, 1, 2, 3), "GPU7": (4, 5, 6, 7)}


def test_a_code_that_the_end_of_the_text_may_have_cut_is_absent() -> None:
    assert parse_topo_m("GPU0 GPU1 GPU2\nGPU0 X SYS NV1").links == (("GPU0", "GPU1", "SYS"),)
    assert parse_topo_m(f"{PLAIN[: PLAIN.index('GPU2	SYS')]}GPU2\tSYS\tNO").links == EXPECTED.links[:5]


def test_a_number_broken_by_a_line_end_is_one_and_two_numbers_are_two() -> None:
    broken = "GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X SYS 0-3,12-1\n5 1\nGPU1 SYS X 4-7\n0\n"
    found = parse_topo_m(broken)
    assert found.cpu_affinity == {"GPU0": (0, 1, 2, 3, 12, 13, 14, 15), "GPU1": (4, 5, 6, 7)}
    assert found.numa == {"GPU0": 1, "GPU1": 0}


def test_a_code_that_is_not_known_is_said() -> None:
    machine = machine_from_topo_m("GPU0 GPU1\nGPU0 X FOO\n", "a mail")
    assert machine.links == ()
    assert "the code FOO between GPU0 and GPU1 is not known" in {unknown.why for unknown in machine.unknown}


def test_glued_names_and_cells_are_parted() -> None:
    text = "\tGPU0GPU1mlx5_0mlx5_1\nGPU0\t X NODEPIXSYS\nGPU1\tNODE X SYSPIX\n"
    found = parse_topo_m(text)
    assert (found.gpus, found.nics) == (("GPU0", "GPU1"), ("mlx5_0", "mlx5_1"))
    assert ("GPU0", "mlx5_0", "PIX") in found.links
    assert len(found.links) == 5


def test_a_blank_affinity_is_an_empty_list_and_a_cut_one_is_absent() -> None:
    blank = expanded(PLAIN.replace("SYS\t0-3,8\t0\t\tN/A\nGPU2", "SYS\t\t\t0\t\tN/A\nGPU2"))
    assert parse_topo_m(blank).cpu_affinity == {"GPU0": (0, 1, 2, 3, 8), "GPU1": (), "GPU2": (4, 5, 6, 7)}
    cut = parse_topo_m(PLAIN[: PLAIN.index("PHB\t4-7")])
    assert cut.cpu_affinity == {"GPU0": (0, 1, 2, 3, 8), "GPU1": (0, 1, 2, 3, 8)}
    assert ("GPU2", "NIC0", "PHB") not in cut.links


def test_a_cell_lost_inside_a_row_is_left_out_and_said() -> None:
    found = parse_topo_m("GPU0 GPU1 GPU2 CPU Affinity\nGPU0 X NV1 NV2 0-3\nGPU1 NV1 X 0-3\nGPU2 NV2 SYS X 0-3\n")
    assert found.links == (("GPU0", "GPU1", "NV1"), ("GPU0", "GPU2", "NV2"), ("GPU1", "GPU2", "SYS"))
    assert "GPU1" in found.lost[0]


def test_cells_that_contradict_each_other_are_an_error_that_names_both() -> None:
    with pytest.raises(AdvisorError, match="row GPU0 says NV12 for GPU1, row GPU1 says SYS for GPU0"):
        parse_topo_m(PLAIN.replace("GPU1\tNV12", "GPU1\tSYS"))


@pytest.mark.parametrize(
    ("text", "looks"),
    [
        ("", "empty"),
        ("\x00\x01\x02", "binary"),
        ("Traceback (most recent call last):\n", "no link matrix"),
        ("<system version='1'>", "NCCL"),
        ("GPU 0: NVIDIA A100\n\t Link 0: 25 GB/s\n", "nvlink"),
        ("\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n", "-p2p"),
        ("\tGPU0\tGPU1\nGPU0\tX\tCNS\nGPU1\tCNS\tX\n", "-p2p"),
        ("=== ROCm System Management Interface ===\n", "rocm-smi"),
        ("GPU0 is slow and GPU1 hangs\n", "names GPUs"),
    ],
)
def test_a_text_without_a_matrix_is_named(text: str, looks: str) -> None:
    with pytest.raises(AdvisorError, match=looks) as error:
        parse_topo_m(text)
    assert error.value.hint


def test_a_machine_keeps_where_it_came_from_and_the_names_of_adapters() -> None:
    machine = machine_from_topo_m(f"{PLAIN}\nNIC Legend:\n\n  NIC0: mlx5_7\n", "a mail")
    assert (machine.source, machine.nics[0].name) == ("a mail", "mlx5_7")
    assert [link.kind for link in machine.links][:2] == ["nvlink", "inter-socket"]


@pytest.mark.parametrize(
    "header",
    ["GPU0 GPU1 " + "CPU Affinity " * 40, " ".join(f"GPU{index}" for index in range(2000))],
    ids=["titles that come again", "thousands of names"],
)
def test_a_header_that_no_machine_has_is_refused(header: str) -> None:
    with pytest.raises(AdvisorError, match="no header line"):
        parse_topo_m(f"{header}\nGPU0 X SYS {'1 ' * 20}\n")


VOCABULARY = (
    "GPU0 GPU1 NIC0 mlx5_0 NV12 PIX X SYS NODE N/A 0-31 0,2 5-1 96- 0,2, ... FOO ? NUM 0-999999 "
    "Legend: = | # é \n \t CPU\x20Affinity "
    "NUMA\x20Affinity GPU\x20NUMA\x20ID [4m \x1b[0m NODENODE GPU0GPU1"
)


@given(st.one_of(st.text(), st.lists(st.sampled_from(re.split(" ", VOCABULARY)), max_size=60).map(" ".join)))
def test_any_text_is_a_matrix_or_an_error_of_ours(text: str) -> None:
    try:
        assert parse_topo_m(text).gpus
    except AdvisorError as error:
        assert error.message
        assert error.hint


@given(st.randoms(use_true_random=False), st.integers(0, 12))
def test_a_damaged_matrix_is_a_matrix_or_an_error_of_ours(chance: random.Random, cuts: int) -> None:
    text = chance.choice([PLAIN, *REAL])
    for _ in range(cuts):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.randrange(12))
        text = text[:start] + chance.choice(["", text[start:end] * 2, "NV2", "\n", "X", "...", "0-3,"]) + text[end:]
    try:
        parse_topo_m(text)
    except AdvisorError as error:
        assert error.hint


@settings(deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 12), st.integers(0, 6), st.integers(0, 3))
def test_what_is_printed_is_read_back(chance: random.Random, gpus: int, nics: int, columns: int) -> None:
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(nics)]
    links = {pair: chance.choice(CODES) for pair in combinations(names, 2)}
    titles = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"][:columns]
    lines = ["\t".join(["", *names, *titles])]
    for row in names:
        cells = [" X " if row == c else links.get((row, c)) or links[c, row] for c in names]
        values = ["0-7,16-23", "1", "N/A"][:columns] if row.startswith("GPU") else []
        lines.append("\t".join([row, *cells, *values]))
    text = "\n".join(lines)
    render = QUIRKS[chance.choice(RENDERINGS)]
    found = parse_topo_m(render(text))
    assert [*found.gpus, *found.nics] == names
    assert found.links == tuple((a, b, code) for (a, b), code in links.items())
    assert found.cpu_affinity == ({n: (*range(8), *range(16, 24)) for n in found.gpus} if columns else None)
    assert found.numa == (dict.fromkeys(found.gpus, 1) if columns > 1 else None)

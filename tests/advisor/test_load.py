"""What `--machine` takes, and what it says about what it can't take."""

import io
from pathlib import Path

import msgspec
import pytest

from advisor.probe.document import ProbeDocument
from advisor.probe.load import load_machine
from advisor.rules.errors import AdvisorError

MACHINES = Path(__file__).parents[2] / "fixtures" / "machines"
MATRIX = "\tGPU0\tGPU1\nGPU0\tX\tPHB\nGPU1\tPHB\tX\n"


@pytest.mark.parametrize("path", sorted(MACHINES.glob("*.json")), ids=lambda path: path.stem)
def test_a_bundled_machine_reads_back_to_itself(path: Path, tmp_path: Path) -> None:
    machine = load_machine(str(path))
    copy = tmp_path / "machine.json"
    copy.write_bytes(msgspec.json.encode(ProbeDocument(machine=machine)))
    assert load_machine(str(copy)) == machine
    assert machine.gpus[0].memory
    assert all(link.bandwidth for link in machine.links if {link.a, link.b} <= {gpu.id for gpu in machine.gpus})


def test_a_gpu_named_beside_the_source_fills_what_it_lacks(tmp_path: Path) -> None:
    text = tmp_path / "topo.txt"
    text.write_text(MATRIX)
    machine = load_machine(str(text), gpu="a10g")
    assert {gpu.name for gpu in machine.gpus} == {"NVIDIA A10G"}
    assert machine.links[0].bandwidth
    assert load_machine(str(text), gpu_memory=24 * 10**9).gpus[1].memory == 24 * 10**9


def test_a_gpu_that_the_text_names_has_the_memory_of_its_data_sheet(tmp_path: Path) -> None:
    text = tmp_path / "topo.txt"
    text.write_text(f"GPU 0: NVIDIA A10G (UUID: GPU-0)\nGPU 1: NVIDIA A10G (UUID: GPU-1)\n{MATRIX}")
    machine = load_machine(str(text))
    assert (machine.gpus[1].name, machine.gpus[1].compute_capability) == ("NVIDIA A10G", "8.6")
    assert machine.gpus[0].memory
    assert machine.links[0].bandwidth


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_file_that_windows_wrote_is_read(encoding: str, tmp_path: Path) -> None:
    text = tmp_path / "topo.txt"
    text.write_text(MATRIX, encoding=encoding, newline="\r\n")
    assert len(load_machine(str(text)).gpus) == 2


def test_a_matrix_comes_through_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(MATRIX.encode())))
    assert len(load_machine("-").gpus) == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\x7fELF\x00\x01", "binary"),
        (b'{"version": 1,\n "machine": {"gpus": [', "no whole JSON .* at the end of line 2"),
        (b'{"version": 1, "machine": {"gpus": [{"id": "GPU0", "index": 0, "memry": 1}]}}', "memry"),
        (b'{"version": 7, "machine": {}}', "version 7"),
        (b'{"machine": {}}', "version"),
        (b'{"version": 1, "verdict": "fits"}', "a recommendation"),
        (b'{"strategy": "ddp", "gpus": []}', "a plan"),
        (b"[1, 2]", "no link matrix"),
    ],
)
def test_a_file_that_holds_no_machine_is_named_with_what_is_wrong(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "given"
    file.write_bytes(content)
    with pytest.raises(AdvisorError, match=words) as error:
        load_machine(str(file))
    assert str(file) in error.value.message
    assert error.value.hint


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("nowhere.json", {}, "no file"),
        ("/", {}, "can't read"),
        ("4x a10", {"gpu": "a10q"}, "a10q"),
        ("4x a10g", {"gpu": "h100"}, "not a NVIDIA H100"),
        ("4x a10g", {"gpu_memory": 80 * 10**9}, "not 80.0 GB"),
    ],
)
def test_what_can_not_be_is_said(source: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(AdvisorError, match=words):
        load_machine(source, **options)  # type: ignore[arg-type]


def test_an_unknown_gpu_gets_near_names() -> None:
    with pytest.raises(AdvisorError) as error:
        load_machine("4x a10g", gpu="a10gg")
    assert "a10g" in error.value.hint


def test_all_sources_of_one_machine_agree_with_what_was_probed_there() -> None:
    """Two H200 of 2026-11-30: five outputs of nvidia-smi, NCCL's two dumps and the live probe contradict nowhere."""
    folder = Path(__file__).parents[2] / "fixtures/captures/2xh200-merged"
    texts = [str(folder / name) for name in ("nvidia-smi.txt", "nccl-topo.xml", "nccl-graph.xml")]
    probed = load_machine(str(folder / "probe.json"))
    merged = load_machine(*texts, str(folder / "probe.json"))
    assert merged.contradictions == ()
    assert {frozenset((k.a, k.b)): k.code for k in merged.links} == {
        frozenset((k.a, k.b)): k.code for k in probed.links
    }
    alone = load_machine(*texts)
    for gpu, told in zip(probed.gpus, alone.gpus, strict=True):
        for field in ("name", "uuid", "bus_id", "compute_capability", "numa", "cpu_affinity", "ecc"):
            assert getattr(told, field) in (None, getattr(gpu, field)), field
        assert abs((told.memory or 0) - (gpu.memory or 0)) < 2**20
        assert len([link for link in told.nvlinks or () if link.active]) == 18
    assert alone.nccl_graphs[0].channels == ((0, 1),) * 12
    assert {(p.a, p.b, p.status) for p in alone.peer_access} == {("GPU0", "GPU1", "OK"), ("GPU1", "GPU0", "OK")}


def test_sources_that_name_no_gpu_are_refused_with_what_to_add() -> None:
    graph = str(Path(__file__).parents[2] / "fixtures/captures/2xh200/nccl-graph.xml")
    with pytest.raises(AdvisorError, match=r"nccl-graph\.xml names no GPU") as error:
        load_machine(graph)
    assert "--machine" in error.value.hint
    assert load_machine(graph, "2x h200 nvswitch").nccl_graphs

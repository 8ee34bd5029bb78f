"""The benchmark of topology texts judges what it should."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TEXTS = ROOT / "fixtures" / "topologies"
MATRIX = "\tGPU0\tGPU1\tNUMA Affinity\nGPU0\t X \tPHB\t0\nGPU1\tPHB\t X \t0\n"
TRUTH: dict[str, Any] = {
    "kind": "topo-m",
    "gpus": 2,
    "nics": 0,
    "links": [["GPU0", "GPU1", "PHB"]],
    "cpu_affinity": None,
    "numa": {"GPU0": 0, "GPU1": 0},
}


def run(*paths: Path) -> tuple[str, dict[str, int]]:
    command = [sys.executable, str(ROOT / "benchmarks" / "topologies.py"), *map(str, paths)]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return table, json.loads(table.splitlines()[-1])


def judge(folder: Path, text: str, **changes: Any) -> tuple[str, dict[str, int]]:
    (folder / "a.txt").write_text(text)
    (folder / "a.json").write_text(json.dumps(TRUTH | changes))
    return run(folder)


def test_the_bundled_texts_are_exact() -> None:
    _, counts = run(TEXTS)
    assert counts["files"] == counts["exact"] == len(list(TEXTS.glob("*.json")))
    assert counts["fields"] == counts["fields_right"] > counts["files"]
    assert counts["crashes"] == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpus", 3),
        ("nics", 1),
        ("links", [["GPU0", "GPU1", "SYS"]]),
        ("links", []),
        ("cpu_affinity", {"GPU0": [0]}),
        ("numa", {"GPU0": 0, "GPU1": 1}),
    ],
)
def test_a_field_that_differs_is_named_and_not_counted_as_right(field: str, value: object, tmp_path: Path) -> None:
    table, counts = judge(tmp_path, MATRIX, **{field: value})
    assert f"wrong: {field}\n" in table
    assert counts == {"files": 1, "exact": 0, "fields": 5, "fields_right": 4, "crashes": 0}


def test_a_name_that_the_text_does_not_hold_is_not_asked_for(tmp_path: Path) -> None:
    _, counts = judge(tmp_path, MATRIX, nic_names={"NIC0": "mlx5_0"}, driver="580.1")
    assert counts["fields"] == counts["fields_right"] == 5


def test_a_matrix_that_is_refused_has_no_field_right(tmp_path: Path) -> None:
    _, counts = judge(tmp_path, "nothing")
    assert (counts["exact"], counts["fields"], counts["fields_right"]) == (0, 5, 0)


def test_a_text_without_gpus_is_exact_when_refused(tmp_path: Path) -> None:
    table, counts = judge(tmp_path, "command not found", gpus=0, links=[], numa=None)
    assert "refused" in table
    assert (counts["files"], counts["exact"]) == (1, 1)


NVLINK = "GPU 0: NVIDIA A100\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\n"
P2P = "$ nvidia-smi topo -p2p w\n\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tNS\tX\n"
ROCM = (
    "= Weight between two GPUs =\nGPU0 GPU1\nGPU0 0 15\nGPU1 15 0\n= Link Type between two GPUs =\nGPU0 GPU1\n"
    "GPU0 0 XXXX\nGPU1 XXXX 0\nGPU[0] : (Topology) Numa Node: 1\nGPU[0] : (Topology) Numa Affinity: 2\n"
)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "nvlink-status": (NVLINK, {"gpus": 1, "gbytes_per_s_per_link": {"GPU0": {"0": 25.0, "1": None}}}),
    "topo-p2p": (
        P2P,
        {"gpus": 2, "capability": "w", "status_directed": [["GPU0", "GPU1", "OK"], ["GPU1", "GPU0", "NS"]]},
    ),
    "rocm-showtopo": (
        ROCM,
        {
            "gpus": 2,
            "weight": [["GPU0", "GPU1", 15]],
            "hops": None,
            "links": [["GPU0", "GPU1", "XXXX"]],
            "numa": {"GPU0": 1},
            "numa_affinity": {"GPU0": 2},
        },
    ),
}
WRONG: list[tuple[str, str, Any]] = [
    ("nvlink-status", "gpus", 2),
    ("nvlink-status", "gbytes_per_s_per_link", {"GPU0": {"0": 25.781}}),
    ("topo-p2p", "capability", "r"),
    ("topo-p2p", "status_directed", [["GPU0", "GPU1", "OK"], ["GPU1", "GPU0", "OK"]]),
    ("rocm-showtopo", "weight", [["GPU0", "GPU1", 30]]),
    ("rocm-showtopo", "hops", [["GPU0", "GPU1", 1]]),
    ("rocm-showtopo", "links", []),
    ("rocm-showtopo", "numa", {"GPU0": 0}),
    ("rocm-showtopo", "numa_affinity", {}),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_of_each_kind_is_judged_by_all_fields_of_its_truth(kind: str, tmp_path: Path) -> None:
    text, truth = KINDS[kind]
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "a.json").write_text(json.dumps({"kind": kind, **truth}))
    _, counts = run(tmp_path)
    assert counts == {"files": 1, "exact": 1, "fields": len(truth), "fields_right": len(truth), "crashes": 0}


@pytest.mark.parametrize(("kind", "field", "value"), WRONG)
def test_each_field_of_each_kind_can_be_wrong(kind: str, field: str, value: object, tmp_path: Path) -> None:
    text, truth = KINDS[kind]
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "a.json").write_text(json.dumps({"kind": kind, **truth, field: value}))
    table, counts = run(tmp_path)
    assert f"wrong: {field}\n" in table
    assert counts["fields_right"] == len(truth) - 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpus", 5),
        ("nics", 2),
        ("nvlinks", [["0001:00:00.0", "0001:00:00.0", 4, "0x030200"]]),
        ("numa", {"0001:00:00.0": 3}),
        ("affinity_hex", {"0": "00000001"}),
    ],
)
def test_each_field_of_an_nccl_topology_can_be_wrong(field: str, value: object, tmp_path: Path) -> None:
    name = "nccl-xml-azure-ncv4-a100pcie"
    truth = json.loads((TEXTS / f"{name}.json").read_text())
    (tmp_path / "a.xml").write_bytes((TEXTS / f"{name}.xml").read_bytes())
    (tmp_path / "a.json").write_text(json.dumps(truth | {field: value}))
    table, counts = run(tmp_path)
    assert f"wrong: {field}\n" in table
    assert counts["fields_right"] == 4


def test_the_capability_is_asked_for_only_where_the_text_tells_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(P2P.partition("\n")[2])
    (tmp_path / "a.json").write_text(json.dumps({"kind": "topo-p2p", **KINDS["topo-p2p"][1]}))
    assert run(tmp_path)[1]["fields"] == 2

"""The benchmark of link matrices judges what it should."""

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


def test_a_kind_that_is_not_read_yet_is_listed_and_not_counted(tmp_path: Path) -> None:
    table, counts = judge(tmp_path, "GPU 0: NVIDIA A100\n\t Link 0: 25 GB/s\n", kind="nvlink-status")
    assert "not read yet" in table
    assert counts == {"files": 0, "exact": 0, "fields": 0, "fields_right": 0, "crashes": 0}

"""The folder of a run."""

import datetime
from pathlib import Path

import pytest

from advisor.executor.folder import RunFolder, choose_folder, write_whole
from advisor.rules.errors import AdvisorError

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


def test_name_tells_time_and_script_and_is_never_taken_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = []
    for _ in range(3):
        folder = choose_folder(None, "lib/train.py", NOW)
        folder.create()
        names.append(str(folder.path))
    first = "advisor-runs/20260102-030405-train"
    assert names == [first, f"{first}-2", f"{first}-3"]


def test_empty_folder_is_taken_and_a_full_one_refused(tmp_path: Path) -> None:
    RunFolder(tmp_path).create()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "ranks"]
    with pytest.raises(AdvisorError, match="is not empty") as refusal:
        RunFolder(tmp_path).create()
    assert "--run-dir" in refusal.value.hint


def test_folder_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AdvisorError, match="can't make the run folder"):
        RunFolder(tmp_path / "file" / "run").create()


def test_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_whole(path, b"old")
    with pytest.raises(TypeError):
        write_whole(path, "no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["report.json"]

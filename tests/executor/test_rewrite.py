"""Files that are changed are the old ones or the new ones, and keep what is not their content."""

import os
from pathlib import Path

import pytest

from advisor.executor.rewrite import Change, rewrite
from advisor.rules.errors import AdvisorError


def change(file: Path, after: bytes = b"x = 2\n") -> Change:
    return Change(file=str(file), before=file.read_bytes(), after=after)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_bytes(b"x = 1\n")
    file.chmod(0o754)
    return file


def test_content_changes_and_the_mode_stays(script: Path) -> None:
    rewrite(change(script))
    assert script.read_bytes() == b"x = 2\n"
    assert script.stat().st_mode & 0o777 == 0o754
    assert [path.name for path in script.parent.iterdir()] == ["train.py"]


def test_a_link_stays_a_link(script: Path) -> None:
    link = script.with_name("link.py")
    link.symlink_to(script.name)
    rewrite(change(link))
    assert link.is_symlink()
    assert script.read_bytes() == b"x = 2\n"


def test_a_file_that_was_changed_meanwhile_is_left_alone(script: Path) -> None:
    planned = change(script)
    script.write_bytes(b"x = 3\n")
    with pytest.raises(AdvisorError, match="has changed meanwhile"):
        rewrite(planned)
    assert script.read_bytes() == b"x = 3\n"


def test_a_full_disk_leaves_the_old_file_and_nothing_else(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AdvisorError, match="No space left on device"):
        rewrite(change(script))
    assert script.read_bytes() == b"x = 1\n"
    assert [path.name for path in script.parent.iterdir()] == ["train.py"]


def test_the_diff_names_the_file_and_shows_both_lines(script: Path) -> None:
    lines = change(script).diff.splitlines()
    assert lines[0] == f"--- {script}"
    assert lines[-2:] == ["-x = 1", "+x = 2"]
    windows = Change(file="a.py", before=b"x = 1\r\ny = 1\r\n", after=b"x = 2\r\ny = 1\r\n")
    assert windows.diff.splitlines()[-3:] == ["-x = 1", "+x = 2", " y = 1"]

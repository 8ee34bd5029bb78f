"""What was measured is kept in the user's cache folder, for the machine it was measured on alone."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.executor.machine_store import folder, keep_links, keep_run, recall
from advisor.rules.machine import Gpu, Machine, Software
from advisor.rules.measurements import Links, RunRatio

MACHINE = Machine(
    gpus=(Gpu(id="GPU0", index=0, name="NVIDIA H200", uuid="GPU-1"),),
    software=Software(driver="570.86", torch="2.13.0"),
)
LINKS = Links(date="2026-11-30T10:00:00+00:00", seconds=2.0)
RUN = RunRatio(date="2026-11-30T11:00:00+00:00", script="train.py", strategy="ddp", device="NVIDIA H200", ratio=1.1)


def the_file() -> Path:
    (path,) = folder().iterdir()  # nothing half-written lies beside it
    return path


def test_nothing_is_kept_of_a_new_machine() -> None:
    assert recall(MACHINE).measurements is None
    assert recall(MACHINE).notes == ()


def test_links_and_runs_are_kept_together() -> None:
    assert keep_links(MACHINE, LINKS) is None
    assert keep_run(MACHINE, RUN) is None
    kept = recall(MACHINE).measurements
    assert kept is not None
    assert (kept.links, kept.runs) == (LINKS, (RUN,))


def test_another_driver_is_another_machine_and_the_change_is_named() -> None:
    keep_links(MACHINE, LINKS)
    found = recall(replace(MACHINE, software=Software(driver="575.51", torch="2.13.0")))
    assert found.measurements is None
    assert found.notes == (
        "measurements of 2026-11-30 are not used, this machine has changed: driver 570.86 -> 575.51",
    )


def test_another_host_knows_nothing_and_says_nothing() -> None:
    keep_links(MACHINE, LINKS)
    found = recall(replace(MACHINE, gpus=(replace(MACHINE.gpus[0], uuid="GPU-2"),)))
    assert (found.measurements, found.notes) == (None, ())


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b'{"version": 1', b'{"version": 1, "identity": {"gpu": 1}}'])
def test_a_damaged_file_is_ignored_with_one_line_and_written_anew(content: bytes) -> None:
    keep_links(MACHINE, LINKS)
    the_file().write_bytes(content)
    (note,) = recall(MACHINE).notes
    assert "damaged" in note
    assert "\n" not in note
    assert recall(MACHINE).measurements is None
    keep_run(MACHINE, RUN)
    kept = recall(MACHINE).measurements
    assert kept is not None
    assert kept.runs == (RUN,)


def test_a_file_of_another_version_is_ignored_with_one_line() -> None:
    keep_links(MACHINE, LINKS)
    the_file().write_text(the_file().read_text().replace('"version": 1', '"version": 2', 1))
    (note,) = recall(MACHINE).notes
    assert "version 2, not 1" in note


def test_a_cache_that_cannot_be_written_is_one_line_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    line = keep_links(MACHINE, LINKS)
    assert line is not None
    assert line.startswith("what was measured is not kept: can't write ")
    assert recall(MACHINE).measurements is None


def test_the_folder_is_that_of_the_xdg_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert folder({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/advisor/machines")
    assert folder({"XDG_CACHE_HOME": "relative"}) == Path("/home/me/.cache/advisor/machines")
    assert folder({}) == Path("/home/me/.cache/advisor/machines")

"""What a run that died outright has left is named by the next one, and left alone."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from advisor.executor.folder import RunFolder
from advisor.executor.leftovers import Alive, leftovers, mark_alive, unmark_alive


@pytest.fixture
def dead_run(tmp_path: Path) -> RunFolder:
    """Make the folder of a run whose launcher had our pid, but began long before us."""
    folder = RunFolder(tmp_path / "runs" / "1")
    folder.create()
    alive = Alive(pid=os.getpid(), started=time.time() - 90_000, boot=psutil.boot_time())
    folder.alive.write_bytes(msgspec.json.encode(alive))
    return folder


def test_segments_of_its_time_that_nobody_uses_are_named(dead_run: RunFolder, tmp_path: Path) -> None:
    shared = tmp_path / "shm"
    shared.mkdir()
    for name in ("nccl-abc", "torch_1_2_3", "somebody-elses"):
        (shared / name).write_bytes(bytes(1_000_000))
    (shared / "nccl-old").write_bytes(b"x")
    os.utime(shared / "nccl-old", (1, 1))
    with (shared / "sem.open").open("w"):
        (line,) = leftovers(dead_run.path.parent, shared)
    assert (
        f"left 2 segments of shared memory, 2 MB, that nobody uses: rm {shared}/nccl-abc {shared}/torch_1_2_3" in line
    )
    assert (shared / "nccl-abc").exists()


def test_run_that_lives_or_came_to_its_end_has_left_nothing(dead_run: RunFolder, tmp_path: Path) -> None:
    shared = tmp_path / "shm"
    shared.mkdir()
    (shared / "nccl-abc").write_bytes(b"x")
    mark_alive(dead_run)
    assert leftovers(dead_run.path.parent, shared) == ()
    unmark_alive(dead_run)
    assert leftovers(dead_run.path.parent, shared) == ()


def test_mark_that_can_not_be_read_is_passed_over(dead_run: RunFolder) -> None:
    dead_run.alive.write_bytes(b"{")
    assert leftovers(dead_run.path.parent) == ()


@pytest.mark.parametrize("random", ["ab12cd34", "a_b__c3_"])
def test_process_that_bears_the_name_of_its_run_is_named(dead_run: RunFolder, tmp_path: Path, random: str) -> None:
    (dead_run.logs / "torchrun" / f"7f84-run_{random}").mkdir(parents=True)
    ours = subprocess.Popen(["sleep", "60"], env={"TORCHELASTIC_RUN_ID": "7f84-run"})
    other = subprocess.Popen(["sleep", "60"], env={"TORCHELASTIC_RUN_ID": "7f84"})
    try:
        (line,) = leftovers(dead_run.path.parent, tmp_path / "no-shm")
        assert f"left 1 process: {ours.pid} (sleep); to end them: kill {ours.pid}" in line
    finally:
        for process in (ours, other):
            process.kill()
            process.wait()


@pytest.mark.slow
def test_process_of_a_run_whose_launcher_and_guard_were_killed_at_once_is_named(scripts: Any) -> None:
    process = scripts.start_applied("waits.py", "with helper")
    assert process.stdout.readline() == b"ready\n"
    guard, torchrun, rank, helper = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGSTOP)  # so that it can't take over what the guard leaves
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    guard.kill()
    for one in (torchrun, rank):
        with suppress(psutil.NoSuchProcess):  # those that die with the guard
            one.kill()
    process.kill()
    try:
        process.wait(timeout=10)  # while it is a zombie, the run looks alive
        psutil.wait_procs([rank], timeout=10)
        (line,) = leftovers(scripts.folder.parent)
        assert f"left 1 process: {helper.pid} (sleep); to end them: kill {helper.pid}" in line
        assert helper.is_running()
    finally:
        helper.kill()
        scripts.finish(process)

"""What goes wrong on two ranks: one screen says what happened and what to do, and nothing is left running."""

import os
import resource
import shutil
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from advisor.executor.fault import Fault
from advisor.executor.folder import RunFolder
from advisor.rules.errors import AdvisorError

pytestmark = pytest.mark.slow
SCRIPT = "goes_wrong.py"


@pytest.fixture
def went_wrong(scripts: Any) -> Iterator[Any]:
    """Run the script until it has gone wrong; return the result, and see that no process is left."""

    def run(*arguments: str, hang_timeout: float = 60) -> Any:
        environment = os.environ | {"HANG_TIMEOUT": str(hang_timeout)}
        process = scripts.start_applied(SCRIPT, *arguments, plan=scripts.plan(ranks=2), env=environment)
        return scripts.finish(process)

    yield run
    marked = [process for process in psutil.process_iter() if SCRIPT in " ".join(words(process))]
    assert marked == []


def words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def fault(scripts: Any) -> Fault:
    found = scripts.report().fault
    assert found is not None
    return found  # type: ignore[no-any-return]


def test_exception_on_one_rank_shows_its_traceback_and_line_once(scripts: Any, went_wrong: Any) -> None:
    result = went_wrong("exception")
    assert result.exit_code == 1
    assert "bad sample" not in result.err  # rank 0's own output; the screen has rank 1's once
    found = fault(scripts)
    assert found.what.startswith("rank 1 (pid ")
    assert f"on {socket.gethostname()}) failed after 3 steps: ValueError: bad sample" in found.what
    assert found.where is not None
    assert found.where.endswith('goes_wrong.py:32 in go_wrong: raise ValueError("bad sample")')
    assert found.details[-1].endswith("ValueError: bad sample")
    assert found.others == "rank 0 ended as a consequence"
    assert 'raise ValueError("bad sample")' in scripts.log("torchrun.err")  # torchrun's summary has the user's line


def test_killed_rank_is_told_with_its_signal_and_the_usual_reason(scripts: Any, went_wrong: Any) -> None:
    assert went_wrong("killed").exit_code == 137
    found = fault(scripts)
    assert "was killed by signal 9 (SIGKILL)" in found.what
    assert "rank 1 (pid" in found.what
    assert found.todo[0].startswith("often the kernel's out-of-memory killer: sudo dmesg")


def test_out_of_memory_on_one_rank_ends_the_others_and_says_what_to_try(scripts: Any, went_wrong: Any) -> None:
    assert went_wrong("out of memory").exit_code == 1
    found = fault(scripts)
    assert "rank 1 (pid" in found.what
    assert "after 3 steps" in found.what
    assert "OutOfMemoryError: CUDA out of memory" in found.what
    assert any("smaller micro-batch" in line and "(now 4 x 1)" in line for line in found.todo)
    assert any("checkpointing" in line for line in found.todo)
    assert any("--only fsdp" in line for line in found.todo)


def test_port_that_the_script_fixes_and_another_holds(scripts: Any, went_wrong: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert went_wrong("own store", str(port)).exit_code == 1
        found = fault(scripts)
    assert "EADDRINUSE" in found.what
    assert f"port {port}" in found.todo[0]
    assert "MASTER_PORT" in found.todo[1]


def test_address_that_the_script_fixes_and_nobody_serves(scripts: Any, went_wrong: Any) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert went_wrong("own address", str(silent.getsockname()[1]), hang_timeout=2).exit_code == 124
    found = fault(scripts)
    assert "all ranks are in init_process_group, and it does not end" in found.what
    assert "without init_method" in found.todo[0]


def test_full_disk_costs_the_log_and_not_the_training(scripts: Any, went_wrong: Any) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))  # a file can't grow beyond, as on a full disk
    try:
        result = went_wrong("writes")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (result.exit_code, result.err) == (0, "")
    assert len(scripts.log("1.out")) == 300_000
    assert ("the end of logs/1.out", "it could not be written: File too large") in [
        (unknown.what, unknown.why) for unknown in scripts.report().unknown
    ]


def test_disk_that_is_full_from_the_start_is_told_before_anything_starts(
    scripts: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from advisor.executor import apply as executor

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(executor, "write_whole", full)
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(AdvisorError, match="No space left on device") as told:
        executor.apply(scripts.plan(), None, str(script), [], run_dir=tmp_path / "run")
    assert "--run-dir" in told.value.hint


MOUNT = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-rm", "sh", "-c", MOUNT, "sh", "true"], capture_output=True, check=False).returncode,
    reason="needs a mount namespace of its own",
)
def test_full_shared_memory_is_told(scripts: Any, monkeypatch: pytest.MonkeyPatch, went_wrong: Any) -> None:
    start = scripts._start
    monkeypatch.setattr(
        type(scripts),
        "_start",
        staticmethod(
            lambda command, **streams: start(["unshare", "-rm", "sh", "-c", MOUNT, "sh", *command], **streams)
        ),
    )
    assert went_wrong("shared memory").exit_code == 1
    assert fault(scripts).todo[0].startswith("/dev/shm is full or too small: df -h /dev/shm")


def test_rank_that_never_reaches_the_collective(scripts: Any, went_wrong: Any) -> None:
    assert went_wrong("sleeps", hang_timeout=2).exit_code == 124
    found = fault(scripts)
    assert "rank 0 waits in all_reduce float[20]; rank 1 does not come" in found.what
    assert "is missing: idle" in found.details[1]
    assert "in go_wrong: time.sleep(100)" in found.details[1]
    assert ".backward()" in found.details[0]
    stacks = (RunFolder(scripts.folder).logs / "hang.txt").read_text()
    assert "goes_wrong.py" in stacks
    assert "in_process" not in stacks


def test_rank_that_is_stuck_in_its_data_loader_is_named_as_such(scripts: Any, went_wrong: Any) -> None:
    assert went_wrong("data loader", hang_timeout=2).exit_code == 124
    found = fault(scripts)
    assert "is missing: idle, in its data loader" in found.details[1]
    assert "num_workers=0" in found.todo[0]


def test_rank_that_native_code_keeps_is_seen_from_outside(scripts: Any, went_wrong: Any) -> None:
    result = went_wrong("native code", hang_timeout=0.8)
    assert result.exit_code == 124
    assert "others: rank 1 is busy, in native code that keeps Python's lock" in result.err  # told early, stopped late
    assert "in go_wrong" in fault(scripts).details[1]


def test_work_of_all_or_of_one_rank_is_no_hang(scripts: Any, went_wrong: Any) -> None:
    result = went_wrong("computes", "4", hang_timeout=1.5)
    assert result.exit_code == 0
    assert scripts.report().fault is None
    told = [line for line in result.err.splitlines() if line.startswith("advisor: ")]
    assert all(" for others: rank 1 is busy" in line for line in told)  # on a slow machine its imports count as well
    assert any(line.startswith("advisor: rank 0 waited") and "in compute" in line for line in told)

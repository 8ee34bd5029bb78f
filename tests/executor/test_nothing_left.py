"""However a run ends, no process of it stays behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.slow


def ready(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Wait until rank 0 waits; return all processes below ours."""
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return psutil.Process(process.pid).children(recursive=True)


def test_after_sigkill_of_the_launcher(scripts: Any) -> None:
    process = scripts.start_applied("waits.py", plan=scripts.plan(ranks=2))
    below = ready(process)
    process.kill()
    assert scripts.finish(process).exit_code == 137
    assert len(below) == 4  # the guard, torchrun and two ranks
    assert psutil.wait_procs(below, timeout=30)[1] == []


def test_after_sigterm_also_what_the_script_started_in_a_session_of_its_own(scripts: Any) -> None:
    process = scripts.start_applied("waits.py", "with helper")
    below = ready(process)
    process.terminate()
    assert scripts.finish(process).exit_code == 143
    assert len(below) == 4  # the guard, torchrun, the rank and its helper
    assert psutil.wait_procs(below, timeout=1)[1] == []


def test_after_sigkill_of_launcher_and_torchrun_at_once_also_a_session_of_the_scripts_own(scripts: Any) -> None:
    process = scripts.start_applied("waits.py", "with helper")
    below = ready(process)
    _guard, torchrun, *_ = below
    process.kill()
    torchrun.kill()
    result = scripts.finish(process)
    assert psutil.wait_procs(below, timeout=10)[1] == []
    assert f"the launcher (process {process.pid}) was killed; all processes of its run are ended" in result.err


def test_after_sigkill_of_the_group_of_torchrun_and_its_guard(scripts: Any) -> None:
    process = scripts.start_applied("waits.py", "with helper")
    below = ready(process)
    os.killpg(below[0].pid, signal.SIGKILL)
    assert scripts.finish(process).exit_code == 137
    assert psutil.wait_procs(below, timeout=1)[1] == []


def test_a_second_ctrl_c_kills_a_script_that_ignores_the_first(scripts: Any) -> None:
    process = scripts.start_applied("waits.py", "deaf")
    below = ready(process)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"heard, and went on\n"
    process.send_signal(signal.SIGINT)
    assert scripts.finish(process).exit_code == 130
    assert psutil.wait_procs(below, timeout=1)[1] == []


BURST = """
import signal, sys
from advisor.executor import guard
lines, wait_for = int(sys.argv[2]), guard.wait_for

def second(frame, event, _):
    global lines
    if event == "line" and frame.f_code.co_name == "forward":
        lines -= 1
        if lines == 0:
            signal.raise_signal(signal.SIGTERM)
    return second

def first(pid):
    signal.raise_signal(signal.SIGTERM)
    return wait_for(pid)

guard.wait_for = first
sys.settrace(second)
sys.exit(guard.main(sys.argv[1], ["sleep", "60"]) != -signal.SIGTERM)
"""


@pytest.mark.parametrize("line", [1, 2, 3])
def test_a_signal_within_the_handler_of_the_first_is_no_reason_to_miss_both(tmp_path: Path, line: int) -> None:
    subprocess.run([sys.executable, "-c", BURST, str(tmp_path / "log"), str(line)], check=True, timeout=20)

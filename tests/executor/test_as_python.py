"""A script under a plan behaves as under python alone: same output, errors and exit code."""

import fcntl
import os
import pty
import signal
import struct
import termios
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["looks_around.py", "one", "--two"], id="globals, paths, source and odd bytes"),
        pytest.param(["./raises.py"], id="chained exception"),
        pytest.param(["own_excepthook.py"], id="excepthook of the script"),
        pytest.param(["exits.py", "message"], id="sys.exit with a message"),
        pytest.param(["exits.py", "hard"], id="os._exit"),
        pytest.param(["syntax_error.py"], id="syntax error"),
        pytest.param(["own_arguments.py", "--help"], id="help of the script"),
        pytest.param(["starts_processes.py"], id="spawn, forkserver and pickle"),
        pytest.param(["own_packages/train.py"], id="packages with our names"),
        pytest.param(["loads_data.py"], id="data loader that spawns"),
    ],
)
def test_output_and_exit_code_of_a_rank_are_those_of_python(scripts: Any, command: list[str]) -> None:
    assert scripts.by_worker(*command) == scripts.alone(*command)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["looks_around.py", "one", "--two"], id="globals, paths, source and odd bytes"),
        pytest.param(["exits.py", "number"], id="sys.exit(3)"),
        pytest.param(["exits.py", "signal"], id="death by a signal"),
        pytest.param(
            ["own_arguments.py", "--", "--plan", "x", "--nproc-per-node", "7"], id="options that are also ours"
        ),
    ],
)
def test_output_and_exit_code_are_those_of_python(scripts: Any, command: list[str]) -> None:
    alone = scripts.alone(*command)
    assert scripts.applied(*command) == alone
    assert scripts.log("0.out") == alone.out
    assert scripts.log("0.err") == alone.err
    assert scripts.report().exit_code == alone.exit_code


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        pytest.param([], signal.SIGINT, id="Ctrl-C"),
        pytest.param([], signal.SIGTERM, id="SIGTERM"),
        pytest.param(["with handler"], signal.SIGTERM, id="SIGTERM that the script handles"),
    ],
)
def test_signal_reaches_the_script(scripts: Any, arguments: list[str], number: signal.Signals) -> None:
    results = []
    for start in (scripts.start_alone, scripts.start_applied):
        process = start("waits.py", *arguments)
        assert process.stdout.readline() == b"ready\n"
        time.sleep(1)  # so that the signal finds the script waiting, not still in `print`
        process.send_signal(number)
        results.append(scripts.finish(process))
    assert results[1] == results[0]


def test_a_terminal_stays_one_of_the_same_size(scripts: Any, tmp_path: Path) -> None:
    script = tmp_path / "terminal.py"
    script.write_text("import os, sys\nprint(sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size(1))\n")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 123, 0, 0))
    process = scripts.start_applied(str(script), stdout=theirs)
    assert scripts.finish(process).exit_code == 0
    assert os.read(ours, 1000) == b"True False os.terminal_size(columns=123, lines=33)\r\n"
    assert scripts.log("0.out") == "True False os.terminal_size(columns=123, lines=33)\n"


def test_output_of_other_ranks_is_kept_off_the_console(scripts: Any) -> None:
    result = scripts.applied("exits.py", "rank 1", plan=scripts.plan(ranks=2))
    assert (result.out, result.err, result.exit_code) == ("leaving by rank 1\n", "", 1)
    assert scripts.log("1.err") == "rank 1 has had enough\n"
    report = scripts.report()
    assert (report.failed_rank, report.failure) == (1, "rank 1 has had enough")

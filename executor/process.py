"""Start torchrun, pass signals on to it, and see to it that nothing of it is left behind."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import psutil

from advisor.executor.console import Console
from advisor.executor.folder import RunFolder
from advisor.executor.launch import Launch
from advisor.rules.machine import Value

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL, for processes that outlive torchrun


class Ended(Value, frozen=True, kw_only=True):
    torchrun: int  # its exit status; negative: the signal that ended it
    signal: int | None  # the first that we passed on


def run(launch: Launch, folder: RunFolder) -> Ended:
    """Run a launch to its end; rank 0's output appears on our own streams.

    torchrun gets each signal once, as it alone would, and stops its processes by it; a second Ctrl-C kills them all.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans of the run come to us instead of init
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    console = Console(folder.logs)
    environment = {name: value for name, value in os.environ.items() if name not in launch.unset} | launch.environment
    with folder.torchrun_log.open("wb") as log:
        process = subprocess.Popen(
            launch.argv,
            env=environment | {"ADVISOR_CONSOLE": console.err.path},
            stdout=console.out.write,
            stderr=log,
            start_new_session=True,  # a terminal's Ctrl-C comes to us alone
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509 - no thread runs yet
        )
    console.start()
    try:
        with _forwarding(process.pid, before) as received:
            status = _wait(process)
        return Ended(torchrun=status, signal=received[0] if received else None)
    finally:
        _end(_descendants(before))
        console.close()


@contextmanager
def _forwarding(pid: int, before: set[int]) -> Iterator[list[int]]:
    """Pass signals on to a process, and collect their numbers."""
    received: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            os.kill(pid, number)  # a second one would break off torchrun's own tidying up
        elif number == signal.SIGINT:
            for process in _descendants(before):
                _kill(process)

    handlers: dict[int, Any] = {n: h for n in FORWARDED if (h := signal.getsignal(n)) is not signal.SIG_IGN}  # nohup
    for number in handlers:
        signal.signal(number, forward)
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process, reaping the orphans that come to us meanwhile."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode


def _descendants(before: set[int]) -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.pid not in before]


def _end(processes: list[psutil.Process]) -> None:
    """End what outlived torchrun: background processes of the script, children of a rank that was killed."""
    for process in processes:
        _kill(process, signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=GRACE_SECONDS)
    for process in alive:
        _kill(process)
    psutil.wait_procs(alive, timeout=GRACE_SECONDS)


def _kill(process: psutil.Process, number: int = signal.SIGKILL) -> None:
    with suppress(psutil.Error):  # it is gone, or no longer ours to stop
        process.send_signal(number)

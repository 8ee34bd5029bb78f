"""The tree of processes below this one: who belongs to it, and how all of it is ended."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL, for processes that outlive torchrun
POLL_SECONDS = 0.05
_libc = ctypes.CDLL(None)


def adopt_orphans() -> None:
    """Have orphans below us come to us instead of init, sessions of their own and double forks included."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)


def dies_with_us(number: int) -> Callable[[], None]:
    """Return what a child does before its program starts, so that it gets this signal when we die."""
    return lambda: _libc.prctl(PR_SET_PDEATHSIG, number)


def descendants(before: Collection[int] = ()) -> list[psutil.Process]:
    """List all processes below this one, but those of the numbers `before`."""
    return [child for child in psutil.Process().children(recursive=True) if child.pid not in before]


def end_all(before: Collection[int] = ()) -> None:
    """End all processes below this one, but those of the numbers `before`: SIGTERM, some time, then SIGKILL.

    Nothing is reaped here, so that a thread may call it while another waits for a child.
    """
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):  # twice: one may have started another meanwhile
        processes = _alive(before)
        send(processes, number)
        deadline = time.monotonic() + GRACE_SECONDS
        while processes and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            processes = _alive(before)


def reap() -> None:
    """Take note of all children that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _alive(before: Collection[int]) -> list[psutil.Process]:
    found = []
    for process in descendants(before):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def send(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.Error):  # it is gone, or no longer ours to stop
            process.send_signal(number)

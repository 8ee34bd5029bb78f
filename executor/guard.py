"""The process between us and torchrun, which ends the whole run when we can't: `guard LOG COMMAND...`.

It lies in a session of its own and adopts the orphans of the run, so a kill of the launcher, of torchrun, of ranks or
of a process group leaves it, or the launcher, to end the rest. It ends as its command does.
"""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from advisor.executor.tree import adopt_orphans, descendants, dies_with_us, end_all, reap, send

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
STOP_SECONDS = 40  # after the first signal; torchrun itself kills its processes after 30


def main(log: str, command: Sequence[str]) -> int:
    """Run a command to its end, and return its status, negative for a signal."""
    launcher = os.getppid()
    adopt_orphans()
    with Path(log).open("wb") as file:
        torchrun = subprocess.Popen(command, stderr=file, preexec_fn=dies_with_us(signal.SIGTERM))  # noqa: PLW1509
    _forward_to(torchrun.pid)
    if os.getppid() != launcher:  # it died before we asked to be told
        os.kill(os.getpid(), signal.SIGTERM)
    status = wait_for(torchrun.pid)
    signal.alarm(0)
    if os.getppid() != launcher:
        left = f"the launcher (process {launcher}) was killed; all processes of its run are ended"
        sys.stderr.write(f"advisor: {left}, what they wrote is in {Path(log).parent}\n")
    end_all()
    reap()
    return status


def wait_for(pid: int) -> int:
    """Wait for one child, reaping the orphans that come to us meanwhile; return its status, negative for a signal."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _forward_to(pid: int) -> None:
    """Pass the first signal on, by which torchrun stops its ranks; kill all at a second Ctrl-C or after a while.

    A launcher with threads that dies sends several at once, one as each thread ends, and python may begin with the
    second anywhere inside the first's handler: so each call takes its number in one step.
    """
    calls = itertools.count(1)

    def forward(number: int, _: FrameType | None) -> None:
        if next(calls) == 1:
            signal.alarm(STOP_SECONDS)
            os.kill(pid, number)  # a second one would break off torchrun's own tidying up
        elif number in (signal.SIGINT, signal.SIGALRM):
            send(descendants(), signal.SIGKILL)

    for number in (*FORWARDED, signal.SIGALRM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, forward)


def _end_as(status: int) -> None:
    """Leave with this status; by the same signal, where it was one."""
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(abs(status))


if __name__ == "__main__":
    _end_as(main(sys.argv[1], sys.argv[2:]))

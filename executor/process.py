"""Start torchrun under its guard, pass signals on, watch the ranks, and leave nothing of it behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from msgspec import field

from advisor.executor.console import Console, say
from advisor.executor.folder import RunFolder
from advisor.executor.guard import FORWARDED, wait_for
from advisor.executor.hang import Hang
from advisor.executor.launch import Launch
from advisor.executor.tree import adopt_orphans, descendants, dies_with_us, end_all, reap
from advisor.executor.watch import Watch
from advisor.rules.machine import Value


class Ended(Value, frozen=True, kw_only=True):
    torchrun: int  # its exit status; negative: the signal that ended it
    signal: int | None  # the first that we passed on
    hang: Hang | None = None  # for which we stopped it
    cut_logs: dict[str, str] = field(default_factory=dict)  # logs that are not whole, and why


def run(launch: Launch, folder: RunFolder, ranks: int = 1, hang_timeout: float = 0) -> Ended:
    """Run a launch to its end; rank 0's output appears on our own streams.

    torchrun gets each signal once, as it alone would, and stops its processes by it; a second Ctrl-C kills them all.
    Ranks that wait for one another for `hang_timeout` seconds are stopped; 0 lets them wait.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    adopt_orphans()
    before = {child.pid for child in descendants()}
    console = Console(folder.logs, ranks)
    watch = Watch(ranks, hang_timeout, folder.ranks, say) if hang_timeout > 0 and ranks > 1 else None
    environment = launch.environ() | {"ADVISOR_OUTPUT": console.paths}
    if watch is not None:
        environment["ADVISOR_WATCH"] = watch.address
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "advisor.executor.guard", str(folder.torchrun_log), *launch.argv],
        env=environment,
        stdout=console.out.write,
        start_new_session=True,  # a terminal's Ctrl-C comes to us alone
        preexec_fn=dies_with_us(signal.SIGTERM),  # noqa: PLW1509 - no thread runs yet
    )
    console.start()
    try:
        with _forwarding(process.pid) as received:
            if watch is not None:
                watch.start(lambda: end_all(before))
            process.returncode = wait_for(process.pid)
    finally:
        end_all(before)
        hang = None if watch is None else watch.close()
        reap()
        console.close()
    return Ended(
        torchrun=process.returncode,
        signal=received[0] if received else None,
        hang=hang,
        cut_logs=console.cut_logs(),
    )


@contextmanager
def _forwarding(pid: int) -> Iterator[list[int]]:
    """Pass all signals on to a process, and collect their numbers."""
    received: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        received.append(number)
        os.kill(pid, number)

    handlers: dict[int, Any] = {n: h for n in FORWARDED if (h := signal.getsignal(n)) is not signal.SIG_IGN}  # nohup
    for number in handlers:
        signal.signal(number, forward)
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)

"""Talk to the process that runs programs of ours on forked ranks; it has imported torch and more once, for all."""

import contextlib
import json
import random
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from advisor.executor.folder import RunFolder
from advisor.executor.tree import adopt_orphans, descendants, dies_with_us, end_all, reap
from advisor.rules.errors import AdvisorError

FORKS = Path(__file__).parent / "bootstrap" / "forks.py"
END_SECONDS = 15.0  # beyond the limit of a run, for the processes to be ended
PORTS, TRIED_PORTS = 12_000, 20
NO_TRIALS = "start without trials: --no-calibrate"


class Forks:
    """Runs programs one after the other, each on ranks that are forked from one process."""

    def __init__(self, folder: Path, process: subprocess.Popen[str], hint: str) -> None:
        self._folder, self._process, self._hint = folder, process, hint
        self._count = 0

    def preload(self, modules: Sequence[str]) -> dict[str, Any]:
        """Import modules once for all that is run; return the seconds this took, and what failed."""
        return self._ask({"do": "preload", "names": list(modules)}, 600.0)

    def next_folder(self, name: str = "") -> RunFolder:
        """Make the folder of what is run next: `name`, else by number."""
        self._count += not name
        folder = RunFolder(self._folder / (name or f"{self._count:02}"))
        folder.create()
        return folder

    def run(
        self,
        argv: Sequence[str],
        ranks: int,
        folder: RunFolder,
        environment: Mapping[str, str],
        limit: float,
        *,
        own_gpu: bool = False,
    ) -> dict[str, Any]:
        """Fork the ranks of a program, one host's, and wait for their end; return their exit statuses.

        `argv` is the program, a file of ours, and its arguments; `limit` in seconds. With `own_gpu` each rank sees its
        own GPU alone, as torchrun's --virtual-local-rank has it.
        """
        port = free_port()
        forked = []
        for rank in range(ranks):
            world: dict[str, object] = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": ranks,
                "LOCAL_WORLD_SIZE": ranks,
            }
            world |= {"GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            if own_gpu:
                visible = environment["CUDA_VISIBLE_DEVICES"].split(",")
                world |= {"LOCAL_RANK": 0, "CUDA_VISIBLE_DEVICES": visible[rank]}
            forked.append(
                {
                    "environment": {**environment, **{name: str(value) for name, value in world.items()}},
                    "out": str(folder.logs.absolute() / f"{rank}.out"),
                    "err": str(folder.logs.absolute() / f"{rank}.err"),
                }
            )
        return self._ask({"do": "trial", "ranks": forked, "argv": list(argv), "limit": limit}, limit + END_SECONDS)

    def _ask(self, asked: Mapping[str, Any], limit: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise AdvisorError(f"the process that forks ranks is gone: {error.strerror}", self._hint) from error
        line = _line_within(self._process, limit)
        if line is None:
            raise AdvisorError("the process that forks ranks does not answer", self._hint)
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def forks(folder: Path, environment: Mapping[str, str], hint: str = NO_TRIALS) -> Iterator[Forks]:
    """Start the process that ranks are forked from, under a guard; nothing of it or of them is left afterwards.

    `folder` takes logs and records; `hint` is what to type where it fails.
    """
    adopt_orphans()
    before = {child.pid for child in descendants()}
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "advisor.executor.guard", str(folder / "forks.err"), sys.executable, str(FORKS)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=dies_with_us(signal.SIGTERM),  # noqa: PLW1509 - no thread runs yet
    )
    try:
        yield Forks(folder, process, hint)
    finally:
        end_all(before)
        process.wait()
        reap()


def free_port() -> int:
    """Return a port that nothing listens on, outside of those that the kernel gives to connections meanwhile."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32768  # Linux's own
    below = range(max(1024, first - PORTS), first)
    for port in random.sample(below, min(TRIED_PORTS, len(below))):
        with contextlib.suppress(OSError), socket.socket() as found:
            found.bind(("127.0.0.1", port))
            return port
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _line_within(process: subprocess.Popen[str], seconds: float) -> str | None:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline() or None if ready else None

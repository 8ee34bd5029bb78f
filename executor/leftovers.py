"""What earlier runs that died outright have left: processes and shared-memory segments. They are named, never touched.

While a run lives its folder holds `alive.json`; a folder whose launcher is gone and that still has it died.
"""

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from advisor.executor.folder import RunFolder, write_whole
from advisor.executor.shared_memory import files_in_use
from advisor.rules.format import memory, plural
from advisor.rules.machine import Value

SHARED_MEMORY = Path("/dev/shm")
# NCCL's, torch's, those of Python's multiprocessing, and semaphores
SEGMENTS = ("nccl-*", "torch_*", "psm_*", "sem.*")
RUN_ID = b"TORCHELASTIC_RUN_ID="  # torchrun gives it to its ranks, and all that they start inherits it
SLACK = 60.0  # seconds around the life of a run in which its segments were made
MOST_NAMES = 5


class Alive(Value, frozen=True, kw_only=True):
    """The launcher of a run that has not come to its end."""

    pid: int
    started: float  # seconds since 1970, of the process: a pid alone may be another's by now
    boot: float  # seconds since 1970


def mark_alive(folder: RunFolder) -> None:
    """Leave a mark in the folder of a run that begins."""
    here = Alive(pid=os.getpid(), started=psutil.Process().create_time(), boot=psutil.boot_time())
    write_whole(folder.alive, msgspec.json.encode(here))


def unmark_alive(folder: RunFolder) -> None:
    """Take the mark away: the run came to its end, and all of its processes with it."""
    folder.alive.unlink(missing_ok=True)


def leftovers(runs: Path, shared_memory: Path = SHARED_MEMORY) -> tuple[str, ...]:
    """Name what the dead runs among the folders in `runs` have left, and what to type; a line each."""
    lines: list[str] = []
    for mark in sorted(runs.glob("*/alive.json")):
        with suppress(OSError, msgspec.MsgspecError, psutil.Error):
            alive = msgspec.json.decode(mark.read_bytes(), type=Alive)
            if not _is_running(alive.pid, alive.started):
                lines += _of_run(RunFolder(mark.parent), alive, shared_memory)
    return tuple(dict.fromkeys(lines))


def _of_run(folder: RunFolder, alive: Alive, shared_memory: Path) -> Iterator[str]:
    where = f"the run in {folder.path}, whose launcher was killed,"
    processes = list(_processes(folder))
    if processes:
        names = ", ".join(f"{process.pid} ({process.name()})" for process in processes[:MOST_NAMES])
        kill = "kill " + " ".join(str(process.pid) for process in processes)
        yield f"{where} left {_several(processes, 'process', 'processes')}: {names}; to end them: {kill}"
    if abs(psutil.boot_time() - alive.boot) > SLACK:
        return  # the machine was started since: nothing in memory is of that run
    segments = _segments(alive.started, _last_sign(folder), shared_memory)
    if segments:
        size = memory(sum(path.stat().st_size for path in segments))
        remove = "rm " + shlex.join(map(str, segments[:MOST_NAMES])) + (" ..." if len(segments) > MOST_NAMES else "")
        yield f"{where} left {plural(len(segments), 'segment')} of shared memory, {size}, that nobody uses: {remove}"


def _processes(folder: RunFolder) -> Iterator[psutil.Process]:
    """Find the ranks that still run, and all that inherited the run's name from torchrun."""
    logs: list[bytes] = []
    with suppress(OSError):
        logs = [os.fsencode(path.name) for path in (folder.logs / "torchrun").iterdir()]
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            words = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            names = [word.removeprefix(RUN_ID) for word in words if word.startswith(RUN_ID)]
            if any(log.startswith(name + b"_") for name in names for log in logs):  # torchrun: NAME_RANDOM
                yield process


def _segments(start: float, end: float, shared_memory: Path) -> list[Path]:
    """Find our segments that were made in this span and that no process has mapped or open."""
    found = []
    for pattern in SEGMENTS:
        for path in sorted(shared_memory.glob(pattern)):
            with suppress(OSError):
                facts = path.stat()
                if facts.st_uid == os.getuid() and start - SLACK <= facts.st_mtime <= end + SLACK:
                    found.append(path)
    used = files_in_use(shared_memory) if found else set()
    return [path for path in found if str(path) not in used]


def _last_sign(folder: RunFolder) -> float:
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    return max((path.stat().st_mtime for path in files), default=0.0)


def _is_running(pid: int, started: float) -> bool:
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _several(things: list[psutil.Process], one: str, many: str) -> str:
    return f"{len(things)} {one if len(things) == 1 else many}"

"""Watches a run for ranks that wait for one another without end.

While steps are recorded nothing is asked. After some silence every rank is asked where it stands, again and again; a
hang is that some wait, nothing changes between the answers, and whoever is missing does no work.
"""

import os
import re
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from advisor.executor import hang
from advisor.executor.frames import Frame
from advisor.executor.hang import Hang, Picture
from advisor.executor.in_process.beacon import STACK_SIGNAL
from advisor.executor.records import read_ends

LONGEST_TICK = 5.0  # seconds between two looks
PATIENCE = 10  # times the time limit, for a missing rank that works
ANSWER_SECONDS = 3.0
WORKING_CPU = 0.1  # cores
WORKING_IO = 1e5  # bytes per second read and written, by whatever means
DUMPED = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.M)
HEADING = "Stack (most recent call first):"  # faulthandler's


class Watch:
    """A thread that asks the ranks of one host; `say` tells the user something, `stop` ends the run."""

    def __init__(self, ranks: int, timeout: float, folder: Path, say: Callable[[str], None]) -> None:
        self.address = f"advisor-{os.getpid()}-{secrets.token_hex(8)}"
        self._ranks, self._timeout, self._folder, self._say = ranks, timeout, folder, say
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{self.address}")
        self._listener.listen(ranks)
        self._listener.setblocking(False)
        self._connections: dict[int, socket.socket] = {}  # by pid
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._written = 0  # bytes of all records
        self._quiet_since = time.monotonic()
        self._signature: object = None
        self._since = self._asked = 0.0  # when the ranks began to wait, and when that was first seen
        self._usage: dict[int, tuple[float, float]] = {}
        self._noticed = False
        self._hang: Hang | None = None

    def start(self, stop: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=self._run, args=(stop,), name="advisor-watch", daemon=True)
        self._thread.start()

    def close(self) -> Hang | None:
        """Stop watching; return the hang for which the run was stopped."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        for connection in (self._listener, *self._connections.values()):
            connection.close()
        return self._hang

    def _run(self, stop: Callable[[], None]) -> None:
        while self._hang is None and not self._closing.wait(min(self._timeout / 4, LONGEST_TICK)):
            try:
                self._accept()
                if not self._steps_were_recorded():
                    self._hang = self._look()
            except Exception as error:  # a watch that fails must not end a training that runs
                self._say(f"hangs are no longer noticed, training goes on: {error!r}")
                return
        if self._hang is not None and not self._closing.is_set():
            stop()

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                who = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                pid, user, _ = struct.unpack("3i", who)
                if user != os.getuid():
                    connection.close()
                    continue
                self._connections[pid] = connection

    def _steps_were_recorded(self) -> bool:
        written = sum(path.stat().st_size for path in self._folder.glob("*.jsonl"))
        if written == self._written:
            return False
        self._written, self._quiet_since, self._signature = written, time.monotonic(), None
        return True

    def _look(self) -> Hang | None:
        pictures = self._ask()
        now, usage = time.monotonic(), {picture.rank: _usage(picture.pid) for picture in pictures}
        signature = hang.signature(pictures)
        if not hang.waiting(pictures) or signature != self._signature:
            self._signature, self._usage, self._noticed = signature, usage, False
            self._since = max(self._quiet_since, now - _age(pictures))
            self._asked = now
            return None
        waited = now - self._since
        if waited < self._timeout:
            return None
        elapsed = now - self._asked
        pictures = [
            msgspec.structs.replace(p, works=_works(self._usage[p.rank], usage[p.rank], elapsed)) for p in pictures
        ]
        if any(picture.works for picture in hang.missing(pictures)) and waited < PATIENCE * self._timeout:
            if not self._noticed:
                self._noticed = True
                self._say(hang.notice_of(pictures, waited, PATIENCE * self._timeout))
            return None
        with suppress(OSError):
            (self._folder.parent / "logs" / "hang.txt").write_text(stacks(pictures))
        return hang.hang_of(pictures, waited)

    def _ask(self) -> list[Picture]:
        """Ask all ranks at once, and see from outside where the silent ones stand."""
        for connection in self._connections.values():
            with suppress(OSError):
                connection.settimeout(0)
                with suppress(BlockingIOError):
                    while connection.recv(1 << 16):  # an answer that came too late last time
                        pass
                connection.send(b"?")
        deadline = time.monotonic() + ANSWER_SECONDS
        answers = [_answer(connection, deadline) for connection in self._connections.values()]
        pictures = {picture.rank: picture for picture in answers if picture is not None}
        for rank, (pid, exit_code) in read_ends(self._folder).items():
            if exit_code is not None:
                pictures[rank] = Picture(rank=rank, pid=pid, exit_code=exit_code)
            elif rank not in pictures:
                stack = _stack_by_signal(pid, self._folder / f"{rank}.stack")
                pictures[rank] = Picture(rank=rank, pid=pid, stack=stack, answers=False)
        return [pictures[rank] for rank in sorted(pictures)]


def stacks(pictures: Sequence[Picture]) -> str:
    """Spell out all stacks, the innermost frame first."""
    parts = []
    for picture in pictures:
        parts.append(f"rank {picture.rank}, pid {picture.pid}: {picture.waits or picture.doing}")
        parts += [f"  {frame}" for frame in picture.stack]
    return "\n".join(parts) + "\n"


def _answer(connection: socket.socket, deadline: float) -> Picture | None:
    received = b""
    try:
        while not received.endswith(b"\n"):
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            chunk = connection.recv(1 << 16)
            if not chunk:
                return None
            received += chunk
        return msgspec.json.decode(received.splitlines()[-1], type=Picture)
    except (OSError, msgspec.MsgspecError):
        return None


def _stack_by_signal(pid: int, file: Path) -> tuple[Frame, ...]:
    """Have faulthandler write the stack, where the process catches the signal for that; else it would end by it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        caught = int(status.split("SigCgt:")[1].split()[0], 16)
        if not caught >> (STACK_SIGNAL - 1) & 1:
            return ()
        os.kill(pid, STACK_SIGNAL)
        time.sleep(0.2)
        found = DUMPED.findall(file.read_text().rsplit(HEADING, 1)[-1])
    except (OSError, IndexError):
        return ()
    ours = str(Path(__file__).parent)
    return tuple(
        Frame(file=path, line=int(line), name=name)
        for path, line, name in found
        if not path.startswith((ours + os.sep, "<frozen "))
    )


def _age(pictures: Sequence[Picture]) -> float:
    """Return for how many seconds no rank has entered a collective that is not done."""
    since = [group.pending.since for picture in pictures for group in picture.groups.values() if group.pending]
    return max(0.0, time.time() - max(since)) if since else 0.0


def _usage(pid: int) -> tuple[float, float]:
    """Return CPU seconds and bytes read and written of a process and those below it, its data loader's included."""
    seconds = moved = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                times, io = one.cpu_times(), one.io_counters()
                seconds += times.user + times.system
                moved += io.read_chars + io.write_chars
    return seconds, moved


def _works(before: tuple[float, float], after: tuple[float, float], elapsed: float) -> bool:
    cpu, moved = after[0] - before[0], after[1] - before[1]
    return cpu > WORKING_CPU * elapsed or moved > WORKING_IO * elapsed

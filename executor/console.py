"""Rank 0's output on our own streams, byte for byte, and every rank's in its log files."""

import contextlib
import fcntl
import json
import os
import pty
import signal
import termios
import threading
from pathlib import Path
from typing import Any

CHUNK = 1 << 16  # bytes


class Stream:
    """What a rank writes to: copied to its log and, for rank 0, to `target`, one of our own descriptors.

    A terminal stays one for the script: where the target is a terminal it writes to a pseudo terminal of the same size.
    No rank writes to a log itself: a full disk would end its training.
    """

    def __init__(self, target: int | None, log: Path) -> None:
        self.name = log.name
        self.cut: str | None = None  # why the log is not whole
        self._target = target
        self._terminal = target is not None and os.isatty(target)
        self._read, self.write = pty.openpty() if self._terminal else os.pipe()
        if self._terminal:
            modes = termios.tcgetattr(self.write)
            modes[1] &= ~termios.OPOST  # the real terminal turns \n into \r\n, once
            termios.tcsetattr(self.write, termios.TCSANOW, modes)
            self.resize()
        self._log = log.open("wb", buffering=0)
        self._thread = threading.Thread(target=self._copy, name=f"advisor-{log.name}", daemon=True)

    @property
    def path(self) -> str:
        """Name under which any process of the same user can open the writing end."""
        return f"/proc/{os.getpid()}/fd/{self.write}"

    def start(self) -> None:
        self._thread.start()

    def resize(self) -> None:
        if self._terminal and self._target is not None:
            size = fcntl.ioctl(self._target, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self.write, termios.TIOCSWINSZ, size)

    def close(self) -> None:
        """Copy what is left. The other writers are gone by now; one that can't be killed is not waited for."""
        os.close(self.write)
        self._thread.join(timeout=5)
        self._log.close()

    def _copy(self) -> None:
        try:
            while chunk := self._next():
                if self.cut is None:
                    try:
                        write_all(self._log.fileno(), chunk)
                    except OSError as error:
                        self.cut = error.strerror
                if self._target is not None:
                    write_all(self._target, chunk)
        except OSError:
            pass  # our reader is gone (`| head`): with the pipe closed the script meets that as it would alone
        finally:
            os.close(self._read)

    def _next(self) -> bytes:
        try:
            return os.read(self._read, CHUNK)
        except OSError:  # EIO: how a pseudo terminal says that its last writer is gone
            return b""


class Console:
    """Standard output and error of all ranks of this host."""

    def __init__(self, logs: Path, ranks: int = 1) -> None:
        self.out = Stream(1, logs / "0.out")
        self.err = Stream(2, logs / "0.err")
        others = [(Stream(None, logs / f"{rank}.out"), Stream(None, logs / f"{rank}.err")) for rank in range(1, ranks)]
        self._streams = [self.out, self.err, *(stream for pair in others for stream in pair)]
        # Rank 0 inherits its standard output from torchrun, which itself prints on standard error only.
        self.paths = json.dumps([{2: self.err.path}, *({1: out.path, 2: err.path} for out, err in others)])
        self._resized: Any = None

    def start(self) -> None:
        self._resized = signal.signal(signal.SIGWINCH, lambda *_: self._resize())
        for stream in self._streams:
            stream.start()

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
        signal.signal(signal.SIGWINCH, self._resized)

    def cut_logs(self) -> dict[str, str]:
        """Name the logs that are not whole, and why."""
        return {stream.name: stream.cut for stream in self._streams if stream.cut is not None}

    def _resize(self) -> None:
        with contextlib.suppress(OSError):
            self.out.resize()
            self.err.resize()


def say(line: str) -> None:
    """Say something of our own while a script runs, on our standard error."""
    with contextlib.suppress(OSError):
        write_all(2, f"advisor: {line}\n".encode())


def write_all(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]

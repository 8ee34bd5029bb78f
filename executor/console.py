"""Rank 0's output on our own streams, byte for byte, and in its log file."""

import contextlib
import fcntl
import os
import pty
import signal
import termios
import threading
from pathlib import Path
from typing import Any

CHUNK = 1 << 16  # bytes


class Stream:
    """What rank 0 writes to in place of `target`, one of our own descriptors.

    A terminal stays one for the script: where the target is a terminal it writes to a pseudo terminal of the same size.
    """

    def __init__(self, target: int, log: Path) -> None:
        self._target = target
        self._terminal = os.isatty(target)
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
        if self._terminal:
            size = fcntl.ioctl(self._target, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self.write, termios.TIOCSWINSZ, size)

    def close(self) -> None:
        """Copy what is left. The other writers are gone by now; one that can't be killed is not waited for."""
        os.close(self.write)
        self._thread.join(timeout=5)
        self._log.close()

    def _copy(self) -> None:
        logging = True
        try:
            while chunk := self._next():
                if logging:
                    try:
                        self._log.write(chunk)
                    except OSError:  # a full disk costs the log, not the training
                        logging = False
                while chunk:
                    chunk = chunk[os.write(self._target, chunk) :]
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
    """Standard output and error of rank 0."""

    def __init__(self, logs: Path) -> None:
        self.out = Stream(1, logs / "0.out")
        self.err = Stream(2, logs / "0.err")
        self._resized: Any = None

    def start(self) -> None:
        self._resized = signal.signal(signal.SIGWINCH, lambda *_: self._resize())
        self.out.start()
        self.err.start()

    def close(self) -> None:
        self.out.close()
        self.err.close()
        signal.signal(signal.SIGWINCH, self._resized)

    def _resize(self) -> None:
        with contextlib.suppress(OSError):
            self.out.resize()
            self.err.resize()

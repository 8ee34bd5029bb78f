"""Files of a plain script: rank 0 alone writes them. The other ranks write into a folder of their own and read it back.

So a script may load what it has saved, and nobody waits for another. What is opened through C alone (SQLite, HDF5) is
not seen.
"""

import atexit
import builtins
import contextlib
import functools
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from advisor.executor.in_process.caches import caches

QUIET = {"WANDB_MODE": "disabled", "COMET_MODE": "DISABLED", "CLEARML_OFFLINE_MODE": "1", "NEPTUNE_MODE": "debug"}
NATIVE = ("/dev/", "/proc/", "/sys/", "/run/")
SAVERS = (("torch.serialization", "save", 1, "f"), ("safetensors.torch", "save_file", 1, "filename"))
LOADERS = (("safetensors.torch", "load_file", 0, "filename"),)
Act = Callable[[Any], None]


class Shadow:
    """The files that this rank has written, below a folder of its own."""

    def __init__(self, ours: Path) -> None:
        self._root = tempfile.mkdtemp(prefix="files-", dir=ours)
        self._native = (*NATIVE, *caches(), *(f"{folder}{os.sep}" for folder in (self._root, ours.absolute())))
        self._pid = os.getpid()
        self._stat, self._mkdir, self._makedirs = os.stat, os.mkdir, os.makedirs
        self._open = io.open
        atexit.register(self._remove)
        os.environ.update(QUIET)

    def _remove(self) -> None:
        if os.getpid() == self._pid:
            shutil.rmtree(self._root, ignore_errors=True)

    def of(self, path: Any) -> str | None:
        """Return where a path lies for this rank; None where it is not the script's to write."""
        if isinstance(path, int):
            return None
        where = os.path.abspath(os.fsdecode(path))  # noqa: PTH100
        return None if f"{where}{os.sep}".startswith(self._native) else self._root + where

    def written(self, path: Any) -> str | None:
        """Return this rank's own copy of a path, if it wrote one."""
        with contextlib.suppress(OSError, TypeError, ValueError):
            own = self.of(path)
            if own is not None:
                self._stat(own)
                return own
        return None

    def to_write(self, path: Any) -> str | None:
        """Return the place to write to, with the folders above it, if these are there for the script."""
        own = self.of(path)
        if own is not None:
            self._makedirs_natively(os.path.dirname(own))  # noqa: PTH120
        return own

    def _makedirs_natively(self, folder: str) -> None:
        missing = []
        while folder and not os.path.lexists(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)  # noqa: PTH120
        for one in reversed(missing):
            with contextlib.suppress(FileExistsError):
                self._mkdir(one)

    def install(self) -> None:
        """Change what python's own functions for files do."""
        builtins.open = io.open = self._opening(io.open)
        os.stat = self._seeing(os.stat)
        os.mkdir = self._making(os.mkdir)
        for name in ("remove", "unlink", "rmdir"):
            setattr(os, name, self._removing(getattr(os, name)))
        for name in ("rename", "replace"):
            setattr(os, name, self._renaming(getattr(os, name)))
        shutil.rmtree = self._removing(shutil.rmtree)

    def _opening(self, native: Any) -> Any:
        @functools.wraps(native)
        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, int) or kwargs.get("opener") is not None:
                return native(file, mode, *args, **kwargs)
            own = self.written(file)
            if own is None and isinstance(mode, str) and set(mode) & set("wax+"):
                own = self.to_write(file)
                if own is not None and ("a" in mode or "+" in mode) and os.path.isfile(file):  # noqa: PTH113
                    shutil.copyfile(file, own)
            return native(file if own is None else own, mode.replace("x", "w") if own else mode, *args, **kwargs)

        return opened

    def _seeing(self, native: Any) -> Any:
        @functools.wraps(native)
        def seen(path: Any, *args: Any, **kwargs: Any) -> Any:
            return native(self.written(path) or path, *args, **kwargs)

        return seen

    def _making(self, native: Any) -> Any:
        @functools.wraps(native)
        def made(path: Any, *args: Any, **kwargs: Any) -> None:
            if sys._getframe(1).f_globals.get("__name__") == "tempfile":  # of this process alone: sockets of workers
                self._native = (*self._native, os.path.abspath(os.fsdecode(path)) + os.sep)  # noqa: PTH100
            own = None if kwargs.get("dir_fd") is not None else self.of(path)
            if own is None:
                native(path, *args, **kwargs)
            else:
                self._makedirs_natively(own)

        return made

    def _removing(self, native: Any) -> Any:
        @functools.wraps(native)
        def removed(path: Any, *args: Any, **kwargs: Any) -> None:
            if kwargs.get("dir_fd") is not None or self.of(path) is None:
                native(path, *args, **kwargs)
            elif own := self.written(path):
                native(own, *args, **kwargs)

        return removed

    def _renaming(self, native: Any) -> Any:
        @functools.wraps(native)
        def renamed(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
            if kwargs or self.of(source) is None:
                native(source, target, *args, **kwargs)
            elif own := self.written(source):
                native(own, self.to_write(target) or target)

        return renamed

    def acts(self) -> Iterator[tuple[str, Act]]:
        """Name the modules whose functions write by themselves, and how each is changed."""
        for module, name, at, word in SAVERS:
            yield module, functools.partial(self._redirect, name, at, word, self.to_write)
        for module, name, at, word in LOADERS:
            yield module, functools.partial(self._redirect, name, at, word, self.written)

    def _redirect(self, name: str, at: int, word: str, place: Callable[[Any], str | None], module: Any) -> None:
        native = getattr(module, name)

        @functools.wraps(native)
        def redirected(*args: Any, **kwargs: Any) -> Any:
            path = args[at] if len(args) > at else kwargs.get(word)
            own = place(path) if isinstance(path, str | os.PathLike) else None
            if own is None:
                return native(*args, **kwargs)
            if len(args) > at:
                return native(*args[:at], own, *args[at + 1 :], **kwargs)
            return native(*args, **{**kwargs, word: own})

        setattr(module, name, redirected)
        if module.__name__ == "torch.serialization":
            setattr(sys.modules["torch"], name, redirected)

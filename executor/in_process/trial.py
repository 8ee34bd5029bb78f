"""What makes a run a trial: it ends after some steps and writes nothing of the user's.

Checkpoint writers do nothing. What python opens for writing is seen by an audit hook: a file that was there before is
refused, one that was not is noted, so that the launcher removes it afterwards. Libraries that write by themselves, in C
(SQLite, HDF5), are not seen.
"""

import functools
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from advisor.executor.in_process.caches import caches

# Trackers that would open a run of their own, and how each is told not to.
QUIET = {"WANDB_MODE": "disabled", "CLEARML_OFFLINE_MODE": "1", "NEPTUNE_MODE": "debug"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SAVERS = (  # module, function: all take what is saved first and a path next, or the other way round
    ("torch.serialization", "save"),
    ("torch.distributed.checkpoint.state_dict_saver", "save"),
    ("torch.distributed.checkpoint.state_dict_saver", "async_save"),
    ("safetensors.torch", "save_file"),
    ("safetensors.torch", "save_model"),
)


class WouldChangeFileError(PermissionError):
    """A trial may not write where something of the user's lies."""


def acts(trial: dict[str, Any], note: Callable[..., None]) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Name the modules that a trial changes, and how; the rest takes effect at once."""
    os.environ.update(QUIET)
    sys.addaudithook(functools.partial(Writes(Path(trial["marks"]), note).hear))
    for module, name in SAVERS:
        yield module, functools.partial(hold_back, name)
    if not trial["communication"]:
        yield "torch.nn.parallel.distributed", without_communication


def hold_back(name: str, module: Any) -> None:
    """Have a function that saves to a path do nothing; into what the script has opened it still saves."""
    save = getattr(module, name)

    @functools.wraps(save)
    def saved(*args: Any, **kwargs: Any) -> Any:
        opened = any(hasattr(value, "write") for value in (*args[:2], *kwargs.values()))
        return save(*args, **kwargs) if opened else None

    setattr(module, name, saved)
    for holder in (sys.modules.get("torch"), sys.modules.get("torch.distributed.checkpoint")):
        if getattr(holder, name, None) is save:
            setattr(holder, name, saved)


def without_communication(distributed: Any) -> None:
    """Have each rank train alone: what a step takes without any traffic."""
    ddp = distributed.DistributedDataParallel
    build = ddp.__init__

    def keep(_, bucket):  # type: ignore[no-untyped-def] # DDP refuses annotations other than its own
        import torch

        done: Any = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    @functools.wraps(build)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        self.register_comm_hook(None, keep)
        self.register_comm_hook = lambda *_: None

    ddp.__init__ = init


class Writes:
    """Judges what a process is about to write, remove or rename."""

    def __init__(self, marks: Path, note: Callable[..., None]) -> None:
        self._marks, self._note = marks, note
        free: list[str | Path] = ["/dev", "/proc", "/run", marks.parent]
        temporary = Path(tempfile.gettempdir())
        if not Path.cwd().is_relative_to(temporary):  # else it is where the user works
            free.append(temporary)
        self._free = (*caches(), *(os.path.realpath(folder) + os.sep for folder in free))

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        judge = JUDGES.get(event)
        if judge is not None:
            judge(self, *args)

    def opened(self, path: Any, _: Any, flags: Any) -> None:
        if isinstance(flags, int) and flags & WRITES:
            self.written(path)

    def written(self, path: Any, *_: Any) -> None:
        """Allow a new file and note it; refuse one that was there."""
        if isinstance(path, int) or (where := self._place(path)) is None:
            return
        if os.path.lexists(where):
            self._refuse(where)
        else:
            self._mark(where).write_text(where)

    def changed(self, path: Any, *_: Any) -> None:
        """Refuse to remove what was there."""
        where = self._place(path)
        if where is not None and os.path.lexists(where):
            self._refuse(where)

    def renamed(self, source: Any, target: Any, *_: Any) -> None:
        self.changed(source)
        self.written(target)

    def _place(self, path: Any) -> str | None:
        """Spell a path out; None where a trial may write."""
        where = os.path.realpath(os.fsdecode(path))
        return None if f"{where}{os.sep}".startswith(self._free) or self._mark(where).exists() else where

    def _mark(self, where: str) -> Path:
        return self._marks / hashlib.sha256(os.fsencode(where)).hexdigest()

    def _refuse(self, where: str) -> None:
        self._note("refused", path=where)
        raise WouldChangeFileError(f"a trial run may not change {where}, which was there before")


JUDGES: dict[str, Callable[..., None]] = {
    "open": Writes.opened,
    "os.mkdir": lambda self, path, *_: None if os.path.lexists(path) else self.written(path),
    "os.remove": Writes.changed,
    "os.rmdir": Writes.changed,
    "os.truncate": Writes.changed,
    "os.rename": Writes.renamed,
    "os.link": lambda self, _, target, *__: self.written(target),
    "os.symlink": lambda self, _, target, *__: self.written(target),
    "shutil.rmtree": Writes.changed,
}

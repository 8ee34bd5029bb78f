"""Save a checkpoint: nothing of the last good one is touched before the new one is complete on the disk."""

import atexit
import contextlib
import errno
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_saver as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.optim import Optimizer

from advisor.checkpoint.folder import (
    CheckpointError,
    Measure,
    MeasuredFile,
    begin,
    checkpoints,
    complete,
    discard,
    measure,
    prune,
    write_file,
)
from advisor.checkpoint.meeting import Meeting, is_alone, of_ranks
from advisor.checkpoint.randomness import random_states
from advisor.checkpoint.state import (
    State,
    collect_unchanged,
    detach,
    is_sharded,
    own_bytes,
    packed,
    shapes,
    states_of,
)

WRITE_SECONDS = 3600.0  # longest wait for the ranks that still write; one that died is ended by its launcher before


def save(
    folder: str | os.PathLike[str],
    step: int,
    *,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] = (),
    scheduler: Any = None,
    sampler: Any = None,
    extra: dict[str, Any] | None = None,
    keep: int = 3,
    sharded: bool | None = None,
    asynchronous: bool = False,
    wait: float = 30.0,
) -> None:
    """Save a checkpoint of `step` in `folder` and keep the last `keep`; every rank calls it.

    Holds the state of model, optimizers, scheduler, sampler and `extra` (values, or objects with a state_dict; those of
    rank 0), and the random states of each rank. `sharded`: each rank writes its part, else rank 0 writes one file with
    the whole; None shards where the model is sharded. `asynchronous` returns once everything is copied to host memory;
    the next save, or `wait()`, waits for the end. `wait`: seconds after which a rank that has not come is missing.
    Raises CheckpointError, on all ranks; the checkpoints before are then as they were.
    """
    if keep < 1:
        raise CheckpointError(f"keep={keep} would keep no checkpoint: give 1 or more")
    _finish_last()
    meeting = Meeting(f"save step {step} in {os.fspath(folder)}")
    meeting.exchange(None, wait)
    optimizers = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    if sharded is None:
        sharded = is_sharded(model)
    state, stepped = collect_unchanged(model, optimizers, full=not sharded)
    small = {f"rank-{meeting.rank}.pt": {"random": random_states(), "sampler": _sampler_state(sampler)}}
    if meeting.rank == 0:
        small["shared.pt"] = {
            "step": step,
            "shapes": shapes(state["model"]),
            "optimizer": bool(optimizers),
            "stepped": stepped,
            "scheduler": None if scheduler is None else scheduler.state_dict(),
            "extra": states_of(extra or {}),
        }
    writing = _Writing(meeting, Path(folder), step, keep, sharded)
    with writing.failing_together():
        what = {"shared.pt": "scheduler= or extra="}
        contents = {name: packed(values, what.get(name, "sampler=")) for name, values in small.items()}
    writing.begin(own_bytes(state, meeting.rank) + sum(map(len, contents.values())))
    if sharded:
        write_state = writing.shards(state, asynchronous)
    else:
        if asynchronous:
            state = detach(state, model, optimizers)
        write_state = writing.whole(state)
    if asynchronous:
        _pending.start(lambda: writing.finish(write_state, contents))
    else:
        writing.finish(write_state, contents)


def wait() -> None:
    """Wait for the asynchronous save under way, if any; every rank calls it before it destroys the process group.

    Raises CheckpointError if that save has failed.
    """
    _finish_last()


def _sampler_state(sampler: Any) -> Any:
    if sampler is None or hasattr(sampler, "state_dict"):
        return sampler and sampler.state_dict()
    if hasattr(sampler, "set_epoch"):
        return {"epoch": sampler.epoch}
    raise CheckpointError(
        f"sampler= is a {type(sampler).__name__}, which has neither state_dict() nor set_epoch(): "
        "give checkpoint.Batches(loader), and iterate over that"
    )


@dataclass
class _Writing:
    """One save, from the folder that it writes in to its completion."""

    meeting: Meeting
    folder: Path
    step: int
    keep: int
    sharded: bool
    partial: Path = Path()
    needed: int = 0  # bytes

    @contextlib.contextmanager
    def failing_together(self) -> Iterator[dict[str, Measure]]:
        """Let all ranks know what this rank wrote, or why it failed; raise on all where one failed."""
        told: dict[str, Any] = {"files": {}, "error": None}
        try:
            yield told["files"]
        except CheckpointException as error:  # a BaseException
            told["error"] = self._explain(next(iter(error.failures.values()))[0])
        except Exception as error:
            told["error"] = self._explain(error)
        all_told = self.meeting.exchange(told, WRITE_SECONDS)
        failed = {rank: one["error"] for rank, one in enumerate(all_told) if one["error"]}
        if failed:
            if self.meeting.rank == 0 and self.partial.name:
                discard(self.partial)
            first = next(iter(failed))
            said = [rank for rank, error in failed.items() if error == failed[first]]
            where = f" on {of_ranks(said)}" if self.meeting.ranks > 1 else ""
            raise CheckpointError(f"can't save step {self.step} in {self.folder}{where}: {failed[first]}")
        told["files"].update({name: tuple(m) for one in all_told for name, m in one["files"].items()})

    def begin(self, own: int) -> None:
        """Make the folder to write in, once all ranks have said how many bytes they will write."""
        self.needed = sum(self.meeting.exchange(own, WRITE_SECONDS))
        with self.failing_together():
            if self.meeting.rank == 0:
                self.partial = begin(self.folder, self.step)
                if shutil.disk_usage(self.folder).free < self.needed:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.partial = Path(self.meeting.exchange(str(self.partial), WRITE_SECONDS)[0])
        with self.failing_together():
            if not self.partial.is_dir():
                raise CheckpointError(f"{self.partial} is not seen there: give a folder on a disk that all ranks share")

    def whole(self, state: State) -> Callable[[], dict[str, Measure]]:
        def write() -> dict[str, Measure]:
            if self.meeting.rank != 0:
                return {}
            with MeasuredFile(self.partial / "state.pt") as file:
                torch.save(state, file)  # type: ignore[arg-type]
            return {"state.pt": file.measure}

        return write

    def shards(self, state: State, asynchronous: bool) -> Callable[[], dict[str, Measure]]:
        alone = is_alone()
        if "optimizer" in state and not state["optimizer"]["state"]:
            del state["optimizer"]["state"]
        writer = FileSystemWriter(self.partial / "state", sync_files=True)
        future: Any = None
        if asynchronous:
            # A group of its own: its collectives must not meet those of the training.
            group = None if alone else _gloo_group()
            future = dcp.async_save(state, storage_writer=writer, process_group=group, no_dist=alone)

        def write() -> dict[str, Measure]:
            if future is None:
                dcp.save(state, storage_writer=writer, no_dist=alone)
            else:
                future.result()
            mine = list((self.partial / "state").glob(f"__{self.meeting.rank}_*"))
            if self.meeting.rank == 0:
                mine.append(self.partial / "state" / ".metadata")
            return {f"state/{path.name}": measure(path) for path in mine}

        return write

    def finish(self, write_state: Callable[[], dict[str, Measure]], contents: dict[str, bytes]) -> None:
        with self.failing_together() as files:
            files.update(write_state())
            files.update({name: write_file(self.partial / name, content) for name, content in contents.items()})
        with self.failing_together():
            if self.meeting.rank == 0:
                complete(self.partial, {"step": self.step, "ranks": self.meeting.ranks, "sharded": self.sharded}, files)
                prune(self.folder, self.keep)

    def _explain(self, error: BaseException) -> str:
        """Say in a sentence what failed and what to do."""
        if isinstance(error, CheckpointError):
            return str(error)
        free = shutil.disk_usage(self.folder).free if self.folder.exists() else 0
        if _is_full(error) or ("inline_container" in str(error) and free < max(self.needed, 1 << 20)):
            last = next(iter(checkpoints(self.folder)), None)
            before = f"the last one, of step {last.step}, is untouched" if last else "there is none before it"
            return (
                f"no space: it needs {_mb(self.needed)}, {_mb(free)} are free; {before}: make room, "
                f"keep fewer than {self.keep}, or save elsewhere"
            )
        if isinstance(error, OSError) and error.strerror:
            return f"{error.strerror} ({error.filename or self.folder}): give a folder that every rank may write to"
        return f"{type(error).__name__}: {error}"


def _is_full(error: BaseException | None) -> bool:
    """Look for a full disk along the chain: torch's zip writer fails once more when it is closed."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


class _Pending:
    """The asynchronous save under way. Its thread is waited for at the end of the process, too."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def start(self, finish: Callable[[], None]) -> None:
        def run() -> None:
            try:
                finish()
            except Exception as error:
                self._error = error

        self._thread = threading.Thread(target=run, name="advisor-checkpoint")
        self._thread.start()

    def join(self) -> Exception | None:
        """Wait, and return what went wrong, once."""
        if self._thread is not None:
            self._thread.join()
        error, self._thread, self._error = self._error, None, None
        return error


_pending = _Pending()
_group: list[tuple[Any, Any]] = []  # the default group, and the group of asynchronous saves beside it


def _finish_last() -> None:
    error = _pending.join()
    if error is not None:
        raise error


@atexit.register
def _tell_at_exit() -> None:
    error = _pending.join()
    if error is not None and os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"advisor: {error}\n")


def _gloo_group() -> Any:
    default = dist.distributed_c10d._get_default_group()
    if not _group or _group[0][0] is not default:
        _group[:] = [(default, dist.new_group(backend="gloo"))]
    return _group[0][1]

"""Load the newest checkpoint that is whole, under whatever strategy and number of ranks the script now has."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_loader as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.optim import Optimizer

from advisor.checkpoint.folder import (
    CheckpointError,
    checkpoints,
    damage,
    read_manifest,
    sizes_differ,
)
from advisor.checkpoint.meeting import Meeting, is_alone, of_ranks
from advisor.checkpoint.randomness import derive_random_states, set_random_states
from advisor.checkpoint.saving import WRITE_SECONDS
from advisor.checkpoint.saving import wait as wait_for_save
from advisor.checkpoint.state import State, check_fit, collect, give_states, put_back, shapes


def load(
    folder: str | os.PathLike[str],
    *,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] = (),
    scheduler: Any = None,
    sampler: Any = None,
    extra: dict[str, Any] | None = None,
    wait: float = 30.0,
) -> int | None:
    """Give the objects the state of the newest whole checkpoint in `folder` and return its step; every rank calls it.

    None where nothing was ever saved there. A damaged checkpoint is named on stderr and the one before it taken.
    `extra` is filled: its objects with a load_state_dict get their state, its values are replaced. Raises
    CheckpointError if no checkpoint is whole, or if it does not hold what is asked for.
    """
    wait_for_save()
    folder = Path(folder)
    meeting = Meeting(f"load from {folder}")
    optimizers = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    found = meeting.exchange([str(checkpoint.path) for checkpoint in checkpoints(folder)], wait)[0]
    for path in map(Path, found):
        reason = _damage(path, meeting)
        if reason is None:
            break
        _say(meeting, f"checkpoint {path} is damaged and skipped: {reason}")
    else:
        if found:
            raise CheckpointError(
                f"no checkpoint in {folder} is whole: to start from the beginning, move that folder away"
            )
        return None
    manifest = read_manifest(path)
    shared = _read(path / "shared.pt")
    if optimizers and not shared["optimizer"]:
        raise CheckpointError(f"{path} holds no optimizer: leave optimizer= out, or give another folder")
    _load_state(path, manifest, shared, model, optimizers)
    if scheduler is not None and shared["scheduler"] is not None:
        scheduler.load_state_dict(shared["scheduler"])
    if extra is not None:
        give_states(shared["extra"], extra)
    _load_own(path, manifest["ranks"], meeting, sampler)
    meeting.exchange(None, WRITE_SECONDS)  # nobody goes on, and perhaps removes it, while others still read
    step: int = shared["step"]
    return step


def _damage(path: Path, meeting: Meeting) -> str | None:
    """Say what is wrong with a checkpoint; the ranks share the reading."""
    reason = sizes_differ(path)
    if reason is None:
        names = sorted(read_manifest(path)["files"])
        reason = damage(path, names[meeting.rank :: meeting.ranks])
    reasons = meeting.exchange(reason, WRITE_SECONDS)
    return next((reason for reason in reasons if reason), None)


def _load_state(
    path: Path, manifest: dict[str, Any], shared: dict[str, Any], model: nn.Module, optimizers: Sequence[Optimizer]
) -> None:
    here = collect(model, optimizers)
    check_fit(shared["shapes"], shapes(here["model"]), path)
    state: State
    if manifest["sharded"]:
        state = here
        if optimizers and not shared["stepped"]:
            del state["optimizer"]["state"]
        _load_shards(path, state)
        if optimizers:
            state["optimizer"].setdefault("state", {})
    else:
        # Mapped: each rank reads what it keeps of it, and ranks of one host share the pages.
        state = torch.load(path / "state.pt", map_location="cpu", mmap=True, weights_only=True)
    try:
        put_back(model, optimizers, state, full=not manifest["sharded"])
    except (RuntimeError, ValueError, KeyError, AssertionError) as error:
        raise _other_optimizer(path, error) from error


def _load_shards(path: Path, state: State) -> None:
    try:
        dcp.load(state, storage_reader=FileSystemReader(path / "state"), no_dist=is_alone())
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        raise _other_optimizer(path, cause) from cause


def _other_optimizer(path: Path, error: BaseException) -> CheckpointError:
    said = str(error).strip().splitlines()
    return CheckpointError(
        f"{path} does not fit the optimizer ({said[0] if said else type(error).__name__}): "
        "build it with the same class and parameter groups, or leave optimizer= out"
    )


def _load_own(path: Path, ranks: int, meeting: Meeting, sampler: Any) -> None:
    """Load what is of each rank: its random states and its sampler's position."""
    there = meeting.rank < ranks
    own = _read(path / f"rank-{meeting.rank if there else 0}.pt")
    if there:
        set_random_states(own["random"])
    else:
        derive_random_states(own["random"], meeting.rank)
    if meeting.ranks > ranks:
        new = of_ranks(list(range(ranks, meeting.ranks)))
        _say(
            meeting,
            f"{path} is of {ranks} rank{'s' * (ranks > 1)}: the random states of {new} are derived from rank 0's",
        )
    if sampler is None or own["sampler"] is None:
        return
    if hasattr(sampler, "load_state_dict"):
        sampler.load_state_dict(own["sampler"])
    else:
        sampler.set_epoch(own["sampler"]["epoch"])


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return values


def _say(meeting: Meeting, text: str) -> None:
    if meeting.rank == 0:
        sys.stderr.write(f"advisor: {text}\n")

"""Ranks of a script that train on the same batches: N times the work of one, found by the batches' sums and stopped.

Only batches that came from a data loader are compared: what a script makes up by itself, a test with random numbers
say, may well be equal. Only models whose ranks all should have batches of their own are looked at. Ranks tell each
other through the store, so no collective of ours is added.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any

from advisor.executor.in_process.fsdp_state import groups_of
from advisor.executor.in_process.meet import the_store
from advisor.executor.in_process.micro_batches import tensors

COMPARED = 3  # batches in a row, all of which must be equal on two ranks
EVERY = 1000  # batches from one comparison to the next: a later loader may lack what the first one had
PATIENCE = 100  # optimizer steps that the other ranks are given to tell theirs
ALIKE = (
    "ranks {ranks} have trained on the same {count} batches, so they do the work of one: give the DataLoader of the "
    "training data sampler=torch.utils.data.DistributedSampler(dataset) instead of shuffle=True, and call "
    "sampler.set_epoch(epoch) in each epoch; of an IterableDataset each rank must yield samples of its own"
)


class Alike:
    """The batches of the first model that is trained on such of a loader."""

    def __init__(self, guard: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._look, self._judge = guard(self._note), guard(self._compare)
        self._watched: list[tuple[weakref.ref[Any], Any]] = []  # models and our hooks on them
        self._loaded = False  # a batch since the last forward pass
        self._batches = self._asked = 0  # trained on; optimizer steps since a comparison was due
        self._marks: list[Any] = []  # of the batches in a row
        self._told = 0  # comparisons
        self._waiting = False  # for other ranks to tell theirs

    def steer_loaders(self, dataloader: Any) -> None:
        kind = dataloader._BaseDataLoaderIter
        following = kind.__next__

        @functools.wraps(following)
        def given(iterator: Any) -> Any:
            batch = following(iterator)
            self._loaded = True
            return batch

        kind.__next__ = given

    def watch(self, model: Any) -> None:
        """Look at what a model is given, if it is the first one or holds the first one."""
        import torch
        import torch.distributed as dist

        alone = not dist.is_initialized() or dist.get_world_size() == 1
        if alone or self._batches or data_ranks(model) != dist.get_world_size():
            return
        inside = set(model.modules())
        for other, handle in self._watched:
            if other() in inside:
                handle.remove()
        disable: Callable[..., Any] = torch.compiler.disable
        handle = model.register_forward_pre_hook(disable(self._look), with_kwargs=True)
        self._watched.append((weakref.ref(model), handle))

    def _note(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        import torch

        if not (self._loaded and torch.is_grad_enabled() and model.training):
            return
        self._loaded = False
        self._batches += 1
        if self._batches == 1:  # others are not looked at
            for other, handle in self._watched:
                if other() is not model:
                    handle.remove()
        if (self._batches - 1) % EVERY < COMPARED:
            self._marks.append(mark(args, kwargs))
            if len(self._marks) == COMPARED:
                self._tell()

    def _tell(self) -> None:
        import torch.distributed as dist

        marks, self._marks = self._marks, []
        # A loader that gives one batch over and over, as tests of speed do, says nothing of ranks.
        telling = None not in marks and len(set(marks)) == COMPARED
        if self._told > 1:
            with contextlib.suppress(RuntimeError):  # not all stores can delete
                the_store().delete_key(_key(self._told - 2, dist.get_rank()))
        the_store().set(_key(self._told, dist.get_rank()), repr(marks if telling else dist.get_rank()))
        self._told += 1
        self._waiting, self._asked = True, 0

    def steer_optimizers(self, optimizer: Any) -> None:
        def after_step(*_: Any) -> None:
            if self._waiting and (found := self._judge()):
                raise RuntimeError(found)

        after_step._torchdynamo_disable = True  # type: ignore[attr-defined]
        optimizer.register_optimizer_step_post_hook(after_step)

    def _compare(self) -> str | None:
        """Return what is wrong, on every rank alike, if two have told the same."""
        import torch.distributed as dist

        store, keys = the_store(), [_key(self._told - 1, rank) for rank in range(dist.get_world_size())]
        if not store.check(keys):
            self._asked += 1  # a rank that is not there yet: after the next step
            self._waiting = self._asked < PATIENCE
            return None
        self._waiting = False
        told: dict[bytes, list[int]] = {}
        for rank, key in enumerate(keys):
            told.setdefault(store.get(key), []).append(rank)
        same = next((found for found in told.values() if len(found) > 1), None)
        return None if same is None else ALIKE.format(ranks=", ".join(map(str, same)), count=COMPARED)


def mark(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return numbers that tell a batch; None for one of equal numbers alone, which tells nothing."""
    found = [one.detach().double() for one in tensors((args, kwargs)) if one.numel() and not one.is_complex()]
    telling = any(bool(one.min() != one.max()) for one in found)
    return tuple((float(one.sum()), float(one.square().sum())) for one in found) if telling else None


def data_ranks(model: Any) -> int:
    """Return how many ranks have batches of their own for a model; 0 where that can't be known.

    Ranks that split a model's tensors or layers among them share a batch.
    """
    import torch.distributed as dist

    if (group := getattr(model, "process_group", None)) is not None:
        return dist.get_world_size(group)
    if (ranks := getattr(model, "dp_world_size", None)) is not None:  # DeepSpeed's engine
        return int(ranks)
    for part in model.modules():
        for shards in groups_of(part):
            return int(shards.mesh_info.mesh.size())
    return 0


def _key(comparison: int, rank: int) -> str:
    return f"advisor/alike/{comparison}/{rank}"

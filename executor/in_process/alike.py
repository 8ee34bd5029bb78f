"""Ranks of a DistributedDataParallel script that train on the same batches: N times the work of one, stopped at once.

Only batches that came from a data loader are compared, by their sums: what a script makes up by itself, a test with
random numbers say, may well be equal. Ranks tell each other through the store, so no collective of ours is added.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

from advisor.executor.in_process.micro_batches import tensors

COMPARED = 3  # batches, all of which must be equal on two ranks
ALIKE = (
    "ranks {ranks} have trained on the same {count} batches, so they do the work of one: give the DataLoader of the "
    "training data sampler=torch.utils.data.DistributedSampler(dataset) instead of shuffle=True, and call "
    "sampler.set_epoch(epoch) in each epoch"
)


class Alike:
    """The first batches of the first model."""

    def __init__(self, guard: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._guard = guard
        self._model: weakref.ref[Any] | None = None
        self._loaded = False  # a batch since the last forward pass
        self._told = 0
        self._handle: Any = None

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
        import torch
        import torch.distributed as dist

        if self._model is None and model.process_group == dist.group.WORLD and dist.get_world_size() > 1:
            self._model = weakref.ref(model)
            disable: Callable[..., Any] = torch.compiler.disable
            look = disable(self._guard(self._look))
            self._handle = model.register_forward_pre_hook(look, with_kwargs=True)

    def _look(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        import torch
        import torch.distributed as dist

        if not (self._loaded and torch.is_grad_enabled() and model.training) or self._told == COMPARED:
            return
        self._loaded = False
        found = [one.detach().double() for one in tensors((args, kwargs)) if one.numel() and not one.is_complex()]
        # A batch of one number alone tells nothing.
        telling = any(bool(one.min() != one.max()) for one in found)
        mark = [(float(one.sum()), float(one.square().sum())) for one in found] if telling else dist.get_rank()
        _store().set(_key(self._told, dist.get_rank()), repr(mark))
        self._told += 1

    def steer_optimizers(self, optimizer: Any) -> None:
        def after_step(*_: Any) -> None:
            if self._told == COMPARED and self._handle is not None:
                self._compare()

        after_step._torchdynamo_disable = True  # type: ignore[attr-defined]
        optimizer.register_optimizer_step_post_hook(after_step)

    def _compare(self) -> None:
        """Raise RuntimeError, on every rank alike, if two have told the same."""
        import torch.distributed as dist

        store, ranks = _store(), range(dist.get_world_size())
        if not store.check([_key(COMPARED - 1, rank) for rank in ranks]):
            return  # a rank that is not there yet: after the next step
        self._handle.remove()
        self._handle = None
        told: dict[tuple[bytes, ...], list[int]] = {}
        for rank in ranks:
            told.setdefault(tuple(store.get(_key(i, rank)) for i in range(COMPARED)), []).append(rank)
        same = next((found for found in told.values() if len(found) > 1), None)
        if same is not None:
            raise RuntimeError(ALIKE.format(ranks=", ".join(map(str, same)), count=COMPARED))


def _key(batch: int, rank: int) -> str:
    return f"advisor/alike/{batch}/{rank}"


def _store() -> Any:
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()

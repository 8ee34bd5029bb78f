"""Data loaders of a plain script: each rank draws the same batches and loads its slice of those that are trained on.

A loader that is iterated without gradients, or while the models are in eval() mode, stays whole.
"""

import array
import contextlib
import functools
import numbers
import weakref
import zlib
from collections import deque
from typing import Any

from advisor.executor.in_process.plain_backward import Backward
from advisor.executor.in_process.plain_nested import rebuilt
from advisor.executor.in_process.plain_random import SAMPLES, STEP, Streams
from advisor.executor.in_process.plain_replicas import Replicas
from advisor.executor.in_process.plain_share import Ranks, Share, place, split

NO_BACKWARD = (
    "no backward pass followed a batch of this loader{where}, so it seems to be evaluated, and each rank had its slice "
    "alone: call model.eval() before the loop, or put the loop inside torch.no_grad()"
)
TOO_SMALL = "a batch of {whole} can't be split among {ranks} ranks{where}: use a larger batch_size, or --gpus {whole}"
TWO_SIZES = (
    "a step takes batches of two loaders, and its slices are of different weights{where}: give the loaders "
    "drop_last=True and batch sizes that {ranks} divides"
)
AHEAD = "a batch of this loader{where} is drawn before the last one was trained on: draw it after the backward pass"
COMPARED = 3  # batches of a pass over an iterable dataset, between ranks


class Pass:
    """One iteration over a loader that is trained on."""

    def __init__(self, where: str, by_index: bool) -> None:
        self.where = where
        self.by_index = by_index
        self.shares: deque[tuple[Share, float]] = deque()  # of batches drawn and not given out yet, with their marks
        self.given = self.trained = 0  # batches given out, and those that a backward pass followed
        self.looked = False  # the batch went through a model without gradients


class Loaders:
    def __init__(self, ranks: Ranks, streams: Streams, replicas: Replicas, backward: Backward) -> None:
        self._ranks, self._streams, self._replicas, self._expect = ranks, streams, replicas, backward.expect
        self._passes: weakref.WeakKeyDictionary[Any, Pass | None] = weakref.WeakKeyDictionary()
        self._training: weakref.WeakSet[Any] = weakref.WeakSet()  # loaders that have been trained on
        self._loaders: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
        self._now: Pass | None = None  # the batch of which is in training
        self._left: tuple[Pass | None, Share] | None = None  # a batch that is trained on after an evaluation
        self._trained = False  # a backward pass was made
        self._share: Share | None = None  # of the batch that is being loaded whole
        backward.on_backward = self._backward
        backward.on_evaluation = self._evaluated

    def steer(self, module: Any) -> None:
        """Change the iterators of torch.utils.data.dataloader."""
        base, several = module._BaseDataLoaderIter, module._MultiProcessingDataLoaderIter
        init, following, index = base.__init__, base.__next__, base._next_index
        reset = several._reset

        @functools.wraps(init)
        def begin(iterator: Any, loader: Any) -> None:
            self._enter()
            self._streams.draw()
            init(iterator, loader)
            self._start(iterator, loader)

        @functools.wraps(reset)
        def again(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            self._enter()
            self._streams.draw()
            if not first_iter:
                self._start(iterator, loader)
            reset(iterator, loader, first_iter)
            self._streams.draw()

        @functools.wraps(index)
        def next_index(iterator: Any) -> Any:
            self._streams.draw()
            drawn = index(iterator)
            return self._slice(iterator, drawn)

        @functools.wraps(following)
        def give(iterator: Any) -> Any:
            return self._give(iterator, following)

        base.__init__, base.__next__, base._next_index, several._reset = begin, give, next_index, again

    def steer_fetch(self, fetch: Any) -> None:
        """In trials every sample is loaded, so that augmentation draws as in one process; the rest is dropped."""
        kind = fetch._MapDatasetFetcher
        load = kind.fetch

        @functools.wraps(load)
        def fetched(fetcher: Any, index: Any) -> Any:
            share = self._share
            if share is None:
                return load(fetcher, index)
            if not fetcher.auto_collation:  # the dataset takes all indices of a batch at once
                return part(load(fetcher, index), share)
            many = getattr(fetcher.dataset, "__getitems__", None)
            data = many(index) if many else [fetcher.dataset[one] for one in index]
            return fetcher.collate_fn(data[share.start : share.stop])

        kind.fetch = fetched

    def _enter(self) -> None:
        """Leave the step of the last batch."""
        if self._ranks.share is not None:
            self._left = self._now, self._ranks.share
        self._ranks.share = self._now = None

    def _back(self) -> None:
        """Go back to the batch that was in training before an evaluation, which has ended or is given up."""
        if self._left is not None and self._ranks.share is None:
            self._now, self._ranks.share = self._left
            self._left = None
            self._streams.draw(STEP)

    def _start(self, iterator: Any, loader: Any) -> None:
        """Decide whether a new iteration is one of training."""
        import torch

        self._passes[iterator] = None
        if not torch.is_grad_enabled() or not (loader in self._training or self._replicas.training()):
            weakref.finalize(iterator, self._back)
            return
        if not getattr(loader, "in_order", True):
            raise RuntimeError("DataLoader(in_order=False) gives ranks different batches: leave in_order out")
        by_index = iterator._dataset_kind == 0
        self._passes[iterator] = Pass(place(), by_index)
        self._loaders[iterator] = weakref.ref(loader)
        if by_index:  # workers of an iterable dataset must yield the same on all ranks
            iterator._base_seed += 0 if self._ranks.matched else self._ranks.rank * 100_003

    def _slice(self, iterator: Any, index: Any) -> Any:
        current = self._passes.get(iterator)
        if current is None or not current.by_index or not hasattr(index, "__len__"):
            if current is not None:
                self._streams.draw(SAMPLES if current.by_index else ())
            return index
        share = self._split(len(index), current)
        current.shares.append((share, mark_of_index(index)))
        if self._ranks.matched:
            self._share = share
            return index
        self._streams.draw(SAMPLES)
        return index[share.start : share.stop]

    def _split(self, whole: int, current: Pass) -> Share:
        if whole < self._ranks.ranks and not current.given and not current.shares:
            raise RuntimeError(TOO_SMALL.format(whole=whole, ranks=self._ranks.ranks, where=current.where))
        return split(whole, self._ranks.rank, self._ranks.ranks)

    def _give(self, iterator: Any, following: Any) -> Any:
        current = self._passes.get(iterator)
        before, fresh = self._ranks.share, self._now is not None and self._now.trained < self._now.given
        other = self._now is not None and self._now is not current
        self._enter()
        if current is None:
            self._streams.draw()
            try:
                return following(iterator)
            except StopIteration:
                self._back()
                raise
        if current.looked and current.trained < current.given:
            raise RuntimeError(NO_BACKWARD.format(where=current.where))
        if not current.by_index or iterator._num_workers:  # else drawing an index, which comes first, does it
            self._streams.draw()
        self._ranks.fetching = True
        try:
            data = following(iterator)
        except BaseException as error:
            self._streams.draw()
            if isinstance(error, StopIteration):
                self._left = None
                if current.given and not current.trained:
                    raise RuntimeError(NO_BACKWARD.format(where=current.where)) from None
            raise
        finally:
            self._ranks.fetching = False
            self._share = None
        if current.shares:
            share, mark = current.shares.popleft()
        else:
            share = self._split(length(data), current)
            mark = mark_of_content(data) if current.given < COMPARED else share.whole
            data = part(data, share)
        self._expect(mark)
        if other and fresh and before is not None and (before.samples * share.whole != share.samples * before.whole):
            raise RuntimeError(TWO_SIZES.format(where=current.where, ranks=self._ranks.ranks))
        current.given += 1
        current.looked = False
        self._left = None
        self._now, self._ranks.share, self._ranks.last, self._ranks.begun = current, share, share, True
        self._ranks.once(
            "each rank trains on its slice of every batch; what the script prints of a batch beside its loss, such as "
            "counts of right answers, is rank 0's slice"
        )
        self._streams.draw(STEP)
        loader = self._loaders[iterator]()
        if loader is not None:
            self._training.add(loader)
        return data

    def _backward(self) -> None:
        if self._now is not None:
            if not self._trained and self._now.given > 1:
                raise RuntimeError(AHEAD.format(where=self._now.where))
            self._trained = True
            self._now.trained = self._now.given

    def _evaluated(self) -> None:
        if self._now is not None:
            self._now.looked = True


def mark_of_index(index: Any) -> float:
    """Return a number that tells batches apart, equal on all ranks that draw the same."""
    with contextlib.suppress(TypeError, OverflowError):
        return float(zlib.crc32(array.array("q", index)))
    return float(zlib.crc32(repr([int(one) if isinstance(one, numbers.Integral) else one for one in index]).encode()))


def mark_of_content(data: Any) -> float:
    """Return a number for a batch that no index tells: the sum of its first tensor, or its length."""
    import torch

    if isinstance(data, torch.Tensor):
        return float(data.detach().double().sum()) if not data.is_complex() else float(len(data))
    parts = list(data.values()) if hasattr(data, "values") else data
    if isinstance(parts, list | tuple) and parts:
        return mark_of_content(parts[0])
    return 0.0


def length(data: Any) -> int:
    """Return the samples of a collated batch: the length of its first tensor, or list of samples."""
    import torch

    if isinstance(data, torch.Tensor) and data.ndim:
        return len(data)
    parts = list(data.values()) if hasattr(data, "values") else data
    if isinstance(parts, list | tuple):
        for one in parts:
            if hasattr(one, "values") or isinstance(one, torch.Tensor | list | tuple):
                return length(one)
        return len(parts)
    raise RuntimeError(f"a batch of {type(data).__name__} can't be split: yield a tensor, list, tuple or dict of them")


def part(data: Any, share: Share) -> Any:
    """Return a slice of a collated batch."""
    import torch

    if isinstance(data, torch.Tensor):
        return data[share.start : share.stop] if data.ndim and len(data) == share.whole else data
    samples = isinstance(data, list | tuple) and len(data) == share.whole
    if samples and not any(isinstance(one, torch.Tensor) and one.ndim for one in data):
        return type(data)(data[share.start : share.stop])
    return rebuilt(data, lambda one: part(one, share))

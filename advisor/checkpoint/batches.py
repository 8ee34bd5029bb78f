"""A DataLoader that knows where in the data the training is."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler


class Batches:
    """Iterates over a DataLoader, an epoch each time, and goes on in the middle of one after `load_state_dict`.

    Counts the batches handed out, not those that workers have read ahead. The position is kept in samples of all ranks:
    a DistributedSampler deals one shuffled order out to the ranks, so another number of ranks goes on in that order,
    and the data of each step is the same where batch size x ranks is. What was consumed is skipped without being read,
    unless the loader has a batch sampler of the script's own.
    """

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self.loader = loader
        self.epoch = 0
        self._samples = 0  # of all ranks, in this epoch
        self._sampler: Any = getattr(loader.batch_sampler, "sampler", loader.sampler)
        # Samples that all ranks together consume with each batch.
        self._stride = (loader.batch_size or 1) * getattr(self._sampler, "num_replicas", 1)
        self._order = _Order(self._sampler)
        batcher: Any = loader.batch_sampler
        self._skips = hasattr(batcher, "sampler")
        if self._skips:
            batcher.sampler = self._order

    @property
    def consumed(self) -> int:
        """Batches of this epoch that this rank has been given."""
        return self._samples // self._stride

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(self.epoch)
        for batch in self._rest():
            self._samples += self._stride
            yield batch
        self.epoch += 1
        self._samples = 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "samples": self._samples, "random": self._order.random}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a position; with another batch size or number of ranks, from the last whole batch before it."""
        self.epoch, self._order.random = state["epoch"], state["random"]
        self._samples = state["samples"] // self._stride * self._stride

    def _rest(self) -> Iterator[Any]:
        """Iterate over what this epoch has left."""
        if not self.consumed:
            return iter(self.loader)
        if not self._skips:
            return itertools.islice(self.loader, self.consumed, None)
        self._order.skip = self.consumed * (self.loader.batch_size or 1)
        random = torch.get_rng_state()
        iterator = iter(self.loader)  # draws a seed for its workers, which the uninterrupted run did long ago
        torch.set_rng_state(random)
        return iterator


class _Order(Sampler[Any]):
    """The order of a sampler, which a RandomSampler draws anew each time: drawn again as it was, it can be entered."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.skip = 0  # samples to leave out, once
        self.random: torch.Tensor | None = None  # state of torch's generator when the order was last drawn

    def __iter__(self) -> Iterator[Any]:
        skip, self.skip = self.skip, 0
        now = torch.get_rng_state()
        if not skip or self.random is None:
            self.random = now
            return itertools.islice(iter(self._sampler), skip, None)
        torch.set_rng_state(self.random)
        order: Iterator[Any] = iter(self._sampler)
        for _ in itertools.islice(order, skip):
            pass
        torch.set_rng_state(now)
        return order

    def __len__(self) -> int:
        return len(self._sampler)

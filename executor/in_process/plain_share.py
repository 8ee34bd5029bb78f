"""What the files for plain scripts share: this rank, its share of the batch in training, and how ranks tell each other.

A plain script knows one process. Every rank runs all of it; each trains on its slice of every batch.
"""

import os
import sys
from typing import Any, NamedTuple

from advisor.executor.in_process.meet import say


class Share(NamedTuple):
    """A rank's slice of a batch."""

    start: int
    stop: int
    whole: int  # samples of the batch
    counts: bool = True  # False: there was no sample left for this rank, it takes the first and weighs nothing

    @property
    def samples(self) -> int:
        return self.stop - self.start


def split(whole: int, rank: int, ranks: int) -> Share:
    """Return a rank's slice; sizes differ by one at most."""
    each, more = divmod(whole, ranks)
    start = rank * each + min(rank, more)
    samples = each + (rank < more)
    return Share(start, start + samples, whole) if samples else Share(0, 1, whole, counts=False)


class Ranks:
    """This process among the ranks of a plain script."""

    def __init__(self, device: str, given: dict[str, Any]) -> None:
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.way = given.get("loss", "mean")
        self.sums = self.way == "sum"  # the script's losses are sums over samples, not means
        self.calls = self.way.startswith("whole")  # batches are whole everywhere, calls of models are divided
        self.matched = bool(given.get("matched"))  # random numbers are those of one process
        self.seed = int(given["seed"])
        self.share: Share | None = None  # of the batch that is trained on
        self.last: Share | None = None  # of the batch that was trained on last, which may be over
        self.reads = ""  # where the script first read a number that differs between slices, and is no loss
        self.fetching = False  # samples are being loaded, each rank its own
        self.begun = False  # the first slice was given out
        self._device, self._pid = device, os.getpid()
        self.inner: Any = None
        self._said: set[str] = set()

    @property
    def active(self) -> bool:
        """Say whether this is the rank's own process, which data loader workers are not, and training has begun."""
        return self.begun and not self.fetching and os.getpid() == self._pid

    @property
    def apart(self) -> bool:
        """Say whether this rank trains on something else than the others now."""
        return self.begun if self.calls else self.share is not None

    def start(self) -> None:
        """Start the process group, once."""
        import torch.distributed as dist

        if self.ranks == 1 or dist.is_initialized():
            return
        dist.init_process_group("gloo" if self._device == "cpu" else "cpu:gloo,cuda:nccl")
        # What happens inside passes, apart from the reduction of gradients: each group keeps an order of its own.
        self.inner = dist.new_group()

    def weight(self, share: Share | None) -> float:
        """Return what a loss of this rank's slice counts for in that of the batch; over all ranks they add up to 1."""
        if share is None:
            return 1 / self.ranks
        return share.samples / share.whole if share.counts else 0.0

    def factor(self) -> float:
        """Return what to multiply a loss with so that the mean of all ranks' gradients is that of the whole batch."""
        if self.sums:
            return float(self.ranks) if self.share is None or self.share.counts else 0.0
        return self.ranks * self.weight(self.share)

    def gather(self, values: list[float]) -> list[list[float]]:
        """Return the values of all ranks, by rank."""
        import torch
        import torch.distributed as dist

        if self.ranks == 1:
            return [values]
        mine = torch.tensor(values, dtype=torch.float64, device="cpu")  # the script may prefer another
        everyone = [torch.empty_like(mine) for _ in range(self.ranks)]
        dist.all_gather(everyone, mine, group=self.inner)
        return [one.tolist() for one in everyone]

    def total(self, tensor: Any) -> Any:
        """Add a tensor up over all ranks; its gradient is added up likewise."""
        return tensor if self.ranks == 1 else _summed()(tensor, self.inner)

    def once(self, line: str) -> None:
        """Say a line once, on rank 0."""
        if line not in self._said:
            self._said.add(line)
            say(line)


def _summed() -> Any:
    """Return a sum over ranks that gradients pass through."""
    import torch
    import torch.distributed as dist

    class Summed(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, tensor: Any, group: Any) -> Any:
            context.group = group
            total = tensor.detach().clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            total = gradient.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=context.group)
            return total, None

    apply: Any = Summed.apply
    return apply


def place() -> str:
    """Return the script's line that we were called from."""
    frame = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(("advisor.executor.", "torch.")):
        frame = frame.f_back  # type: ignore[assignment]
    return "" if frame is None else f" ({frame.f_code.co_filename}, line {frame.f_lineno})"

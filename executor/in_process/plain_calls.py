"""The calls of a plain script's models, each divided among the ranks: inputs are split, results are put together.

For scripts whose batches can't be split where they are made, or whose losses need the whole batch. Every rank makes the
same batches, and all outside the models' calls is done whole on each. Gradients of what is divided count once for each
rank: their mean over ranks is that of one process, for parameters that are used outside of any call as well.
"""

import functools
import weakref
import zlib
from typing import Any

from advisor.executor.in_process.plain_backward import COMPARED, NOW_AND_THEN, UNLIKE
from advisor.executor.in_process.plain_dims import Place, Sliced, of_given, of_result, preferred, shape_of, without
from advisor.executor.in_process.plain_loader import mark_of_content
from advisor.executor.in_process.plain_nested import rebuilt
from advisor.executor.in_process.plain_random import CALL, Streams, drawn
from advisor.executor.in_process.plain_replicas import Replicas
from advisor.executor.in_process.plain_share import Ranks, Share, split

UNEQUAL = (
    "a model's results for the slices of a batch have different shapes, so they can't be put together: pad batches to "
    "one length, or train on one GPU: --gpus 1"
)
UNEVEN = (
    "a model draws other random numbers with `random` or numpy on one rank than on another: draw them with torch, or "
    "train on one GPU: --gpus 1"
)
NO_BATCH_DIM = (
    "a model returns a tensor of shape {shape} for a slice of its batch, of which no dim is the batch's: return one "
    "value for each sample, or train on one GPU: --gpus 1"
)


class Calls:
    def __init__(self, ranks: Ranks, streams: Streams, replicas: Replicas) -> None:
        self._ranks, self._streams, self._replicas = ranks, streams, replicas
        self._second = ranks.way == "whole-dim-1"  # the second dim is the batch's, where it may be either
        self._parts = ranks.way == "whole-inside"  # models are run whole, and their parts divided
        self._depth = 0  # of calls that are run whole
        self._inside = False  # of a divided call, or of a backward pass, which may repeat a part of one
        self._last: Share | None = None
        self._count = 0
        self._trained: weakref.WeakKeyDictionary[Any, tuple[int, bool]] = weakref.WeakKeyDictionary()

    def steer_modules(self, module: Any) -> None:
        """Change how torch.nn.modules.module calls."""
        kind = module.Module
        native = kind.__call__

        @functools.wraps(native)
        def called(model: Any, *args: Any, **kwargs: Any) -> Any:
            import torch

            if torch.compiler.is_compiling() or self._inside or not (torch.is_grad_enabled() and self._trains(model)):
                return native(model, *args, **kwargs)
            if self._parts and not self._depth and model._modules:
                return self._whole(functools.partial(native, model), args, kwargs)
            whole = self._batch_of((args, kwargs))
            if whole < self._ranks.ranks:
                return self._undivided(functools.partial(native, model), args, kwargs, within=not whole)
            return self._divide(functools.partial(native, model), args, kwargs, whole)

        kind.__call__ = called

    def steer_autograd(self, autograd: Any) -> None:
        """What a backward pass computes again belongs to the slice of the last call."""
        for name in ("backward", "grad"):
            setattr(autograd, name, self._passing(getattr(autograd, name)))

    def _passing(self, native: Any) -> Any:
        @functools.wraps(native)
        def passing(*args: Any, **kwargs: Any) -> Any:
            inside, self._inside = self._inside, True
            share, self._ranks.share = self._ranks.share, self._last
            try:
                return native(*args, **kwargs)
            finally:
                self._inside, self._ranks.share = inside, share

        return passing

    def _trains(self, model: Any) -> bool:
        """Say whether a model is in training mode, and an optimizer has parameters of it."""
        if not model.training:
            return False
        seen = self._trained.get(model)
        if seen is None or seen[0] != self._replicas.adopted:
            seen = self._replicas.adopted, any(map(self._replicas.knows, model.parameters()))
            self._trained[model] = seen
        return seen[1]

    def _whole(self, call: Any, args: Any, kwargs: Any) -> Any:
        self._depth += 1
        try:
            return call(*args, **kwargs)
        finally:
            self._depth -= 1

    def _undivided(self, call: Any, args: Any, kwargs: Any, within: bool) -> Any:
        """Make a call whole; within it, calls of parts may be divided if it has no batch itself."""
        inside, self._inside = self._inside, not within
        try:
            return call(*args, **kwargs)
        finally:
            self._inside = inside

    def _divide(self, call: Any, args: Any, kwargs: Any, whole: int) -> Any:
        share = split(whole, self._ranks.rank, self._ranks.ranks)
        taken: set[Sliced] = set()
        sliced, named = mapped((args, kwargs), functools.partial(self._slice, share, taken))
        self._inside, self._ranks.share, self._last, self._ranks.begun = True, share, share, True
        self._ranks.once("batches are whole on every rank; each call of a model is divided among the ranks")
        self._streams.draw(CALL)
        try:
            result = call(*sliced, **named)
        finally:
            self._inside, self._ranks.share = False, None
            self._streams.draw()
        self._compare((args, kwargs), result, whole)
        places = iter(self._places(result, whole, taken))
        return mapped(result, lambda tensor: self._put_together(share, tensor, next(places)))

    def _slice(self, share: Share, taken: set[Sliced], tensor: Any) -> Any:
        shape, floating = shape_of(tensor)
        dim = of_given(shape, floating, self._second, share.whole)
        if dim is None:
            return tensor
        taken.add((dim, without(shape, dim)))
        if tensor.requires_grad:
            return functions()[0](tensor, self._ranks, dim, share)
        return tensor.narrow(dim, share.start, share.samples).contiguous()  # cuDNN wants states of RNNs like that

    def _put_together(self, share: Share, tensor: Any, place: Place) -> Any:
        if tensor.ndim == 0:
            return self._ranks.total(tensor * (share.samples / share.whole))
        if self._second and place.rows > 1:
            rows = tensor.unflatten(0, (place.rows, share.samples))
            return functions()[1](rows, self._ranks, 1, share).flatten(0, 1)
        return functions()[1](tensor, self._ranks, place.dim, share)

    def _batch_of(self, given: Any) -> int:
        """Return the size of the batch, by the first tensor in the arguments of a call; 0 where there is none."""
        found: list[tuple[tuple[int, ...], bool]] = []
        mapped(given, lambda tensor: found.append(shape_of(tensor)) if tensor.ndim else None)
        return found[0][0][preferred(*found[0], self._second)] if found else 0

    def _places(self, result: Any, whole: int, taken: set[Sliced]) -> list[Place]:
        """Say where the samples are in each tensor of a result, by its shapes on all ranks."""
        mine: list[tuple[tuple[int, ...], bool]] = []
        mapped(result, lambda tensor: mine.append(shape_of(tensor)))
        if not mine:
            return []
        everyone = self._ranks.gather([float(size) for shape, _ in mine for size in shape])
        samples = [split(whole, rank, self._ranks.ranks).samples for rank in range(self._ranks.ranks)]
        places, at = [], 0
        for shape, floating in mine:
            shapes = [[int(size) for size in sizes[at : at + len(shape)]] for sizes in everyone]
            at += len(shape)
            place = Place(0) if floating and not shape else of_result(shapes, samples, floating, self._second, taken)
            if place is None:
                raise RuntimeError(
                    (NO_BATCH_DIM if all(one == shapes[0] for one in shapes) else UNEQUAL).format(shape=shape)
                )
            places.append(place)
        return places

    def _compare(self, given: Any, result: Any, whole: int) -> None:
        """Stop where results are of other kinds on another rank; now and then where batches differ."""
        self._count += 1
        marks: list[float] = []
        if self._count <= COMPARED or self._count % NOW_AND_THEN == 0:
            mapped(given, lambda tensor: marks.append(mark_of_content(tensor)))
        kinds: list[tuple[str, int]] = []
        mapped(result, lambda tensor: kinds.append((str(tensor.dtype), tensor.ndim)))
        equal: dict[str, Any] = {UNLIKE: (whole, marks), UNEQUAL: kinds, UNEVEN: drawn()}
        everyone = self._ranks.gather([float(zlib.crc32(repr(one).encode())) for one in equal.values()])
        for words, *told in zip(equal, *everyone, strict=True):
            if any(one != told[0] for one in told):
                raise RuntimeError(words)


def mapped(value: Any, act: Any) -> Any:
    """Return nested tuples, lists and dicts with an act done to each tensor."""
    import torch

    return act(value) if isinstance(value, torch.Tensor) else rebuilt(value, lambda one: mapped(one, act))


@functools.cache
def functions() -> tuple[Any, Any]:
    """Return what takes a rank's slice of a tensor, and what puts slices together.

    Gradients pass through both, and gradients of gradients. Those of slices are greater by the number of ranks.
    """
    import torch
    import torch.distributed as dist

    class Sliced(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, tensor: Any, ranks: Ranks, dim: int, share: Share) -> Any:
            context.given = ranks, dim, share
            each = tensor.shape[dim] // share.whole
            return tensor.narrow(dim, share.start * each, share.samples * each).clone()

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return put(gradient, *context.given) / context.given[0].ranks, None, None, None

    class Put(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, part: Any, ranks: Ranks, dim: int, share: Share) -> Any:
            context.given = ranks, dim, share
            each = part.shape[dim] // share.samples
            kind = torch.uint8 if part.dtype == torch.bool else part.dtype
            size = [*part.shape[:dim], share.whole * each, *part.shape[dim + 1 :]]
            everything = torch.zeros(size, dtype=kind, device=part.device)
            everything.narrow(dim, share.start * each, share.samples * each).copy_(part)
            dist.all_reduce(everything, group=ranks.inner)
            return everything.to(part.dtype)

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return slice_of(gradient, *context.given) * context.given[0].ranks, None, None, None

    slice_of: Any = Sliced.apply
    put: Any = Put.apply
    return slice_of, put

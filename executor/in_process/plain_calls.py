"""The calls of a plain script's models, each divided among the ranks: inputs are split, results are put together.

For scripts whose batches can't be split where they are made, or whose losses need the whole batch. Every rank makes the
same batches, and all outside the models' calls is done whole on each. Gradients of what is divided count once for each
rank: their mean over ranks is that of one process, for parameters that are used outside of any call as well.
"""

import copy
import functools
import weakref
import zlib
from typing import Any

from advisor.executor.in_process.plain_loader import mark_of_content
from advisor.executor.in_process.plain_random import CALL, Streams
from advisor.executor.in_process.plain_replicas import COMPARED, NOW_AND_THEN, UNLIKE, Replicas
from advisor.executor.in_process.plain_share import Ranks, Share, split

UNEQUAL = (
    "a model's results for the slices of a batch have different shapes, so they can't be put together: pad batches to "
    "one length, or train on one GPU: --gpus 1"
)
NO_BATCH_DIM = (
    "a model returns a tensor of shape {shape} for a slice of {samples} samples, which has no dim of the batch: return "
    "one value for each sample, or train on one GPU: --gpus 1"
)


class Calls:
    def __init__(self, ranks: Ranks, streams: Streams, replicas: Replicas) -> None:
        self._ranks, self._streams, self._replicas = ranks, streams, replicas
        self._first = 1 if ranks.way == "whole-dim-1" else 0  # the dim of the batch, where it may be either
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
                return native(model, *args, **kwargs)
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

    def _divide(self, call: Any, args: Any, kwargs: Any, whole: int) -> Any:
        share = split(whole, self._ranks.rank, self._ranks.ranks)
        sliced, named = mapped((args, kwargs), functools.partial(self._slice, share))
        self._inside, self._ranks.share, self._last, self._ranks.begun = True, share, share, True
        self._ranks.once("batches are whole on every rank; each call of a model is divided among the ranks")
        self._streams.draw(CALL)
        try:
            result = call(*sliced, **named)
        finally:
            self._inside, self._ranks.share = False, None
            self._streams.draw()
        self._compare((args, kwargs), result, share)
        return mapped(result, functools.partial(self._put_together, share))

    def _slice(self, share: Share, tensor: Any) -> Any:
        dim = self._dim_of(tensor.shape, share.whole)
        if dim is None:
            return tensor
        if tensor.requires_grad:
            return functions()[0](tensor, self._ranks, dim, share)
        return tensor.narrow(dim, share.start, share.samples)

    def _put_together(self, share: Share, tensor: Any) -> Any:
        if tensor.ndim == 0 and tensor.is_floating_point():
            return self._ranks.total(tensor * (share.samples / share.whole))
        dim = self._dim_of(tensor.shape, share.samples)
        if dim is not None:
            return functions()[1](tensor, self._ranks, dim, share)
        if not tensor.ndim or tensor.shape[0] % share.samples:
            raise RuntimeError(NO_BATCH_DIM.format(shape=tuple(tensor.shape), samples=share.samples))
        if self._first == 0:  # several rows for each sample
            return functions()[1](tensor, self._ranks, 0, share)
        rows = tensor.unflatten(0, (-1, share.samples))
        return functions()[1](rows, self._ranks, 1, share).flatten(0, 1)

    def _batch_of(self, given: Any) -> int:
        """Return the size of the batch, by the first tensor in the arguments of a call; 0 where there is none."""
        sizes: list[int] = []
        mapped(given, lambda one: sizes.append(one.shape[self._first]) if one.ndim > self._first else None)
        return sizes[0] if sizes else 0

    def _dim_of(self, shape: Any, length: int) -> int | None:
        """Return the dim of the batch; the second one may be that of states, which have a row for each layer."""
        for dim in (self._first, 1 - self._first):
            enough = len(shape) > 2 if dim > self._first else len(shape) > dim
            if enough and shape[dim] == length:
                return dim
        return None

    def _layout(self, share: Share, tensor: Any) -> tuple[Any, ...]:
        """Return what must be equal of the results for all slices: kind and shape, in units of their samples."""
        dim = self._dim_of(tensor.shape, share.samples)
        if dim is None and tensor.ndim:
            return str(tensor.dtype), tensor.shape[0] / share.samples, *tensor.shape[1:]
        return str(tensor.dtype), dim, *(size for i, size in enumerate(tensor.shape) if i != dim)

    def _compare(self, given: Any, result: Any, share: Share) -> None:
        """Stop where results don't match between ranks; now and then where batches do not."""
        self._count += 1
        marks: list[float] = []
        if self._count <= COMPARED or self._count % NOW_AND_THEN == 0:
            mapped(given, lambda tensor: marks.append(mark_of_content(tensor)))
        shapes: list[tuple[Any, ...]] = []
        mapped(result, lambda tensor: shapes.append(self._layout(share, tensor)))
        everyone = self._ranks.gather([float(zlib.crc32(repr(one).encode())) for one in (shapes, [share.whole, marks])])
        if any(one[1] != everyone[0][1] for one in everyone):
            raise RuntimeError(UNLIKE)
        if any(one[0] != everyone[0][0] for one in everyone):
            raise RuntimeError(UNEQUAL)


def mapped(value: Any, act: Any) -> Any:
    """Return nested tuples, lists and dicts with an act done to each tensor."""
    import torch

    if isinstance(value, torch.Tensor):
        return act(value)
    if isinstance(value, list | tuple):
        parts = [mapped(one, act) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if hasattr(value, "items") and hasattr(value, "__setitem__"):
        same = copy.copy(value)
        for key, one in value.items():
            same[key] = mapped(one, act)
        return same
    return value


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

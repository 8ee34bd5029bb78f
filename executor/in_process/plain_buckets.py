"""Gradients of several parameters as one tensor, sent at once; they stay views of it, and nothing is copied back."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

BUCKET = 25 * 2**20  # bytes, unless the plan says another number
FIRST = 2**20  # bytes of the first bucket of its kind: it should set out early
ALIGNED = 16  # elements at whose multiples gradients begin, as kernels like it
SPARSE = "sparse gradients are not averaged between ranks: leave sparse=True out, or train on one GPU: --gpus 1"


class Bucket:
    """Parameters of one device and dtype."""

    def __init__(self, members: list[tuple[int, weakref.ref[Any]]], like: list[Any]) -> None:
        self.numbers = [number for number, _ in members]
        self._parameters = [parameter for _, parameter in members]
        self._dtype, self._device = like[0].dtype, like[0].device
        self._layouts = [layout(one) for one in like]
        self._parts: list[int] = []  # of the tensor: each gradient, and what fills up behind it
        for one in like:
            self._parts += [one.numel(), -one.numel() % ALIGNED]

    def pack(self) -> tuple[Any, list[Any]]:
        """Make one tensor of the gradients, zeros where there is none, and the gradients views of it."""
        import torch

        parameters = [parameter() for parameter in self._parameters]
        gradients = [None if one is None else one.grad for one in parameters]
        if any(one is not None and one.is_sparse for one in gradients):
            raise RuntimeError(SPARSE)
        first = gradients[0]
        if len(gradients) == 1 and first is not None and first.is_contiguous():
            return first.detach(), [first]
        # Not the same tensor each time: the script may keep a gradient for longer than a step.
        flat: Any = torch.empty(sum(self._parts), dtype=self._dtype, device=self._device_of(gradients))
        views = [
            part.view(shape) if strides is None else part.as_strided(shape, strides)
            for part, (shape, strides) in zip(flat.split(self._parts)[::2], self._layouts, strict=True)
        ]
        there = [(view, one) for view, one in zip(views, gradients, strict=True) if one is not None]
        if len(there) < len(views):
            flat.zero_()
        if there:
            torch._foreach_copy_([view for view, _ in there], [one for _, one in there])
        for parameter, gradient, view in zip(parameters, gradients, views, strict=True):
            if parameter is not None and gradient is not None:
                parameter.grad = view
        return flat, views

    def give(self, views: list[Any], numbers: set[int]) -> None:
        """Give their gradients to parameters of these numbers, which have none of their own."""
        for number, parameter, view in zip(self.numbers, self._parameters, views, strict=True):
            if number in numbers and (one := parameter()) is not None:
                one.grad = view

    def _device_of(self, gradients: list[Any]) -> Any:
        """Return where the gradients are: a script may have moved the model since."""
        return next((one.device for one in gradients if one is not None), self._device)


def layout(parameter: Any) -> tuple[Any, tuple[int, ...] | None]:
    """Return the shape of a parameter's gradient, and its strides where they are not those of a new tensor."""
    import torch

    like = torch.empty_like(parameter, device="meta")
    return like.shape, None if like.is_contiguous() else like.stride()


def buckets(members: Iterable[tuple[int, weakref.ref[Any]]], size: int) -> Iterator[Bucket]:
    """Yield buckets of about `size` bytes as they fill; the first of each device and dtype is smaller."""
    kinds: dict[Any, list[tuple[int, weakref.ref[Any], Any]]] = {}
    begun: set[Any] = set()
    for number, parameter in members:
        one = parameter()
        if one is None:
            continue
        kind = one.device, one.dtype
        filling = kinds.setdefault(kind, [])
        filling.append((number, parameter, one))
        limit = size if kind in begun else min(FIRST, size)
        if sum(each.numel() * each.element_size() for *_, each in filling) >= limit:
            begun.add(kind)
            yield _bucket(kinds.pop(kind))
    for left in kinds.values():
        yield _bucket(left)


def _bucket(filled: list[tuple[int, weakref.ref[Any], Any]]) -> Bucket:
    return Bucket([(number, parameter) for number, parameter, _ in filled], [one for *_, one in filled])

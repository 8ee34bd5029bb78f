"""Which dim of a tensor is the batch's, in what a model is given and in what it returns.

The first, or the second of states that have a row for each layer; or the second wherever it may be (`second`), as in
sequences of shape (time, batch, ...).
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

Shape = Sequence[int]
Sliced = tuple[int, tuple[int, ...]]  # a dim that was split, and the sizes of the others


class Place(NamedTuple):
    """Where the samples of a result are; `rows` are those of dim 0 for each sample, if not one."""

    dim: int
    rows: int = 1


def preferred(shape: Shape, floating: bool, second: bool) -> int:
    """Return the dim that is the batch's by preference; vectors of features have no time."""
    return int(second and len(shape) >= 2 + floating)


def without(shape: Shape, dim: int) -> tuple[int, ...]:
    return *shape[:dim], *shape[dim + 1 :]


def dims(shape: Shape, floating: bool, second: bool) -> list[int]:
    first = preferred(shape, floating, second)
    return [dim for dim in (first, 1 - first) if dim < len(shape) and (dim in (first, 0) or len(shape) > 2)]


def of_given(shape: Shape, floating: bool, second: bool, whole: int) -> int | None:
    """Return the dim of an argument that is to be split; None: it belongs to no sample."""
    return next((dim for dim in dims(shape, floating, second) if shape[dim] == whole), None)


def of_result(
    shapes: Sequence[Shape], samples: Sequence[int], floating: bool, second: bool, sliced: Collection[Sliced]
) -> Place | None:
    """Return where the samples are in a result that has one of these shapes on each rank; None: nowhere.

    Where two dims may be the batch's, a state comes back as it was given.
    """
    found = [dim for dim in dims(shapes[0], floating, second) if _fits(shapes, samples, dim)]
    found.sort(key=lambda dim: (dim, without(shapes[0], dim)) not in sliced)
    if found:
        return Place(found[0])
    rows = {shape[0] / size if shape else 0.5 for shape, size in zip(shapes, samples, strict=True)}
    if len(rows) == 1 and min(rows).is_integer() and len({tuple(shape[1:]) for shape in shapes}) == 1:
        return Place(0, int(min(rows)))
    return None


def _fits(shapes: Sequence[Shape], samples: Sequence[int], dim: int) -> bool:
    same = len({without(shape, dim) for shape in map(tuple, shapes)}) == 1
    return same and all(shape[dim] == size for shape, size in zip(shapes, samples, strict=True))


def shape_of(tensor: Any) -> tuple[tuple[int, ...], bool]:
    return tuple(tensor.shape), tensor.is_floating_point()

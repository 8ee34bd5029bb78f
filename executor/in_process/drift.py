"""Tensors that should be equal on all ranks: compared by sums of their bits, and by samples where these differ."""

import math
from collections.abc import Callable, Sequence
from typing import Any

SAMPLED = 256  # numbers of a tensor
APART = 1e-3  # relative difference of samples; GPUs of several kinds round differently, which is less
LARGEST = 2**52  # whole numbers below it are floats

Gather = Callable[[list[float]], list[list[float]]]  # returns the numbers of all ranks


def apart(tensors: Sequence[Any], gather: Gather) -> list[int]:
    """Return which tensors differ between ranks; a place without one, None, is compared where all have one.

    Every rank must call it with as many, and gets the same answer.
    """
    everyone = gather(fingerprints(tensors))
    columns = list(zip(*everyone, strict=True))
    suspects = [i for i, sums in enumerate(columns) if -1 not in sums and len(set(sums)) > 1]
    if not suspects:
        return []
    import torch

    everyone = gather(torch.cat([sample(tensors[i], SAMPLED).cpu() for i in suspects]).tolist())
    found = []
    for place, i in enumerate(suspects):
        first, *others = (row[place * SAMPLED : (place + 1) * SAMPLED] for row in everyone)
        if any(difference(first, other) > APART for other in others):
            found.append(i)
    return found


def fingerprints(tensors: Sequence[Any]) -> list[float]:
    """Return the sum of each tensor's bits, -1 where there is none; all wait for the GPU once."""
    import torch

    there = [(i, bits(one).sum()) for i, one in enumerate(tensors) if one is not None]
    found = [-1.0] * len(tensors)
    for device in {total.device for _, total in there}:
        same = [(i, total) for i, total in there if total.device == device]
        for (i, _), total in zip(same, torch.stack([total for _, total in same]).tolist(), strict=True):
            found[i] = float(total % LARGEST)
    return found


def bits(tensor: Any) -> Any:
    """Return a tensor's bits as whole numbers, whose sum is exact in any order."""
    import torch

    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    dense = tensor.detach().contiguous()
    return (torch.view_as_real(dense) if dense.is_complex() else dense).view(whole[dense.element_size()])


def sample(tensor: Any, numbers: int) -> Any:
    """Return numbers from all over a tensor, always as many."""
    import torch

    flat = tensor.detach().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    some = flat[:: max(1, len(flat) // numbers)][:numbers].double()
    return torch.nn.functional.pad(some, (0, numbers - len(some)))


def difference(one: Sequence[float], other: Sequence[float]) -> float:
    """Return how far apart two samples are, relative to the first."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if math.isfinite(a) and math.isfinite(b)]
    apart, size = sum((a - b) ** 2 for a, b in pairs), sum(a**2 for a, _ in pairs)
    return math.sqrt(apart / size) if size else math.inf if apart else 0.0

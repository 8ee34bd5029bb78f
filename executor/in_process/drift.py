"""Tensors that should be equal on all ranks: compared by sums of their bits, and by samples where these differ."""

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
    everyone = gather([number for i in suspects for number in sample(tensors[i])])
    rows = [[one[at : at + SAMPLED] for at in range(0, len(one), SAMPLED)] for one in everyone]
    return [
        i
        for i, samples in zip(suspects, zip(*rows, strict=True), strict=True)
        if any(differ(samples[0], one) for one in samples)
    ]


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


def sample(tensor: Any) -> list[float]:
    """Return numbers from all over a tensor, always as many."""
    flat = tensor.detach().reshape(-1)
    some = flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED].double().tolist()
    return [*some, *[0.0] * (SAMPLED - len(some))]


def differ(one: Sequence[float], other: Sequence[float]) -> bool:
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a == a and b == b]  # noqa: PLR0124 - no NaN
    return sum((a - b) ** 2 for a, b in pairs) > APART**2 * sum(a**2 for a, _ in pairs)

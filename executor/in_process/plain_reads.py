"""What a plain script reads from tensors into numbers, made equal on all ranks, so that all take the same decisions.

Inside a training step the number of a tensor that requires a gradient, such as a loss, is the mean over the slices of
all ranks. Every other one is rank 0's: a mean of counts, or of random numbers, would be something else.
"""

import functools
import sys
import zlib
from typing import Any

from advisor.executor.in_process.plain_share import Ranks
from advisor.executor.in_process.plain_share import place as place_of_script

NAMES = ("item", "__float__", "__int__", "__bool__")
LIBRARY, SCHEDULERS = "torch.", "torch.optim.lr_scheduler"
APART = (
    "the ranks of this plain script have come to different places (rank 0 read a number at line {first}, this rank at "
    "line {mine}): a decision of the script depends on what differs between ranks, such as time or its own slice"
)


def steer(ranks: Ranks, tensor: Any) -> None:
    """Change how numbers are read from torch.Tensor."""
    for name in NAMES:
        setattr(tensor, name, _read(ranks, getattr(tensor, name)))


def _read(ranks: Ranks, read: Any) -> Any:
    @functools.wraps(read)
    def shared(tensor: Any) -> Any:
        value = read(tensor)
        if ranks.ranks == 1:
            return value
        caller = sys._getframe(1)
        module = str(caller.f_globals.get("__name__", ""))
        if module.startswith((LIBRARY, "advisor.executor.")) and module != SCHEDULERS:
            return value  # optimizers read a number for each parameter, so this comes first
        if not ranks.active or isinstance(value, complex):
            return value
        place = zlib.crc32(caller.f_code.co_filename.encode()), caller.f_lineno
        return agreed(ranks, value, tensor.requires_grad, place)

    return shared


def agreed(ranks: Ranks, value: Any, is_loss: bool, place: tuple[int, int]) -> Any:
    """Return one number for all ranks; `place`, file and line, is where they must all be."""
    everyone = ranks.gather([float(value), ranks.weight(ranks.last), *place])
    if any(one[2:] != everyone[0][2:] for one in everyone):
        raise RuntimeError(APART.format(first=int(everyone[0][3]), mine=place[1]))
    if all(one[0] == everyone[0][0] for one in everyone):
        return value
    if is_loss and isinstance(value, float) and ranks.last is not None:
        return sum(number * (1 if ranks.sums else weight) for number, weight, *_ in everyone if weight)
    ranks.reads = ranks.reads or place_of_script()
    return type(value)(everyone[0][0])

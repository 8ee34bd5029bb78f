"""Imported first by a script, has the tensors that it makes be on the GPU, so that its own lines need no change.

PyTorch's default device breaks what draws by a generator of the CPU, as shuffled loaders do: that stays there.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

DRAWS = ("rand", "randint", "randn", "randperm")


def where_its_generator_is(draw: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(draw)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        generator = kwargs.get("generator")
        if generator is None or "device" in kwargs:
            return draw(*args, **kwargs)
        return draw(*args, **kwargs, device=generator.device).to(torch.get_default_device())

    return drawn


torch.set_default_device("cuda")
torch.empty(0)  # makes the list of functions that this is for, before they are others
torch.utils.data.dataset.randperm = where_its_generator_is(torch.randperm)
for name in DRAWS:
    setattr(torch, name, where_its_generator_is(getattr(torch, name)))

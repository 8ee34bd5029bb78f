"""Random numbers of a plain script: one stream that is equal on all ranks, and one of each rank's own.

Samplers, splits and new models draw from the first. What a rank draws inside a training step with torch (dropout,
noise), and while it loads its own samples with torch, `random` and numpy (augmentation), comes from its own.
"""

import random
import sys
from collections.abc import Callable
from typing import Any

from advisor.executor.in_process.plain_share import Ranks

STEP, SAMPLES, CALL = ("torch",), ("torch", "random", "numpy"), ("torch", "cuda")
APART = 1_000_003  # between the seeds of two ranks


class Streams:
    """Which stream each library draws from now; the other one waits."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._own: tuple[str, ...] = ()
        self._waiting: dict[str, Any] = {}
        self._cuda_seed: int | None = None
        random.seed(ranks.seed)  # a script that sets no seed must draw the same on all ranks too

    def seed_torch(self, _: Any) -> None:
        sys.modules["torch"].manual_seed(self._ranks.seed)

    def seed_numpy(self, numpy_random: Any) -> None:
        numpy_random.seed(self._ranks.seed % 2**32)

    def draw(self, own: tuple[str, ...] = ()) -> None:
        """From now on draw from the rank's own stream in these libraries, in the others from the one for all."""
        if self._ranks.matched or self._ranks.ranks == 1:
            return
        for name, (get, put, fresh) in LIBRARIES.items():
            if (name in own) != (name in self._own) and _loaded(name):
                state = get()
                put(self._waiting[name] if name in self._waiting else fresh(APART * (self._ranks.rank + 1)))
                self._waiting[name] = state
        self._own = own
        if own and "cuda" not in own and _loaded("cuda"):
            self._part_cuda(sys.modules["torch"].cuda)

    def _part_cuda(self, cuda: Any) -> None:
        """Let the GPU's generator, which no sampler draws from, differ per rank after each seeding by the script."""
        if cuda.initial_seed() != self._cuda_seed:
            self._cuda_seed = (cuda.initial_seed() + APART * (self._ranks.rank + 1)) % 2**63
            cuda.manual_seed(self._cuda_seed)


def drawn() -> tuple[int, ...]:
    """Return how far `random` and numpy have drawn: ranks that drew the same are at the same place."""
    state = random.getstate()[1]
    if "numpy.random" not in sys.modules:
        return state[0], state[-1]
    _, words, position, *_ = sys.modules["numpy.random"].get_state()
    return state[0], state[-1], int(words[0]), int(position)


def _loaded(name: str) -> bool:
    """Say whether a library, or the GPU, is in use."""
    if name == "cuda":
        return "torch" in sys.modules and bool(sys.modules["torch"].cuda.is_initialized())
    return name != "numpy" or "numpy.random" in sys.modules


def _fresh_torch(apart: int) -> Any:
    import torch

    return torch.Generator().manual_seed((torch.initial_seed() + apart) % 2**63).get_state()


def _fresh_cuda(apart: int) -> Any:
    import torch

    return torch.Generator("cuda").manual_seed((torch.cuda.initial_seed() + apart) % 2**63).get_state()


def _fresh_numpy(apart: int) -> Any:
    numpy = sys.modules["numpy.random"]
    seed = int(numpy.get_state()[1][0])
    return numpy.RandomState((seed + apart) % 2**32).get_state()


def _call(module: str, name: str, *args: Any) -> Any:
    return getattr(sys.modules[module], name)(*args)


LIBRARIES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[int], Any]]] = {
    "torch": (
        lambda: _call("torch", "get_rng_state"),
        lambda state: _call("torch", "set_rng_state", state),
        _fresh_torch,
    ),
    "cuda": (
        lambda: _call("torch.cuda", "get_rng_state"),
        lambda state: _call("torch.cuda", "set_rng_state", state),
        _fresh_cuda,
    ),
    "random": (
        random.getstate,
        random.setstate,
        lambda apart: random.Random(random.getstate()[1][0] + apart).getstate(),
    ),
    "numpy": (
        lambda: _call("numpy.random", "get_state"),
        lambda state: _call("numpy.random", "set_state", state),
        _fresh_numpy,
    ),
}


def match(ranks: Ranks) -> None:
    """From now on draw for the whole batch what is drawn for a slice, and take the slice: as one process draws it.

    Slow, so only in trials. A tensor belongs to the batch where one of its dims is as long as the slice, or the first a
    multiple of it; where that is a mistake, the comparison with one process shows it.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    in_place = ("bernoulli_", "normal_", "uniform_", "random_", "exponential_", "geometric_", "log_normal_", "cauchy_")
    like = ("rand_like", "randn_like", "randint_like")
    sized = ("rand", "randn", "randint", "normal")

    def whole(shape: Any) -> tuple[list[int], int, int, int] | None:
        """Return the shape for the whole batch, and which part of which dim is the slice's."""
        share = ranks.share
        if share is None or share.samples == share.whole or not len(shape):
            return None
        for dim, size in enumerate(shape):
            if size == share.samples:
                return [*shape[:dim], share.whole, *shape[dim + 1 :]], dim, share.start, size
        each, rest = divmod(shape[0], share.samples)
        if rest or not each:
            return None
        return [each * share.whole, *shape[1:]], 0, each * share.start, shape[0]

    def drawn(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in sized:
            at = next((i for i, one in enumerate(func._schema.arguments) if one.name == "size"), len(args))
            found = whole(args[at]) if at < len(args) else None
            if found is None:
                return func(*args, **kwargs)
            shape, dim, start, length = found
            return func(*args[:at], shape, *args[at + 1 :], **kwargs).narrow(dim, start, length).clone()
        found = whole(args[0].shape)
        if found is None:
            return func(*args, **kwargs)
        shape, dim, start, length = found
        part = func(args[0].new_empty(shape), *args[1:], **kwargs).narrow(dim, start, length)
        return args[0].copy_(part) if name in in_place else part.clone()

    mode: Any = TorchDispatchMode

    class Matched(mode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func._schema.name.removeprefix("aten::")
            random_op = name in in_place or name in like or name in sized
            own = (kwargs or {}).get("generator") is not None
            if not random_op or own or ranks.share is None:
                return func(*args, **(kwargs or {}))
            return drawn(func, args, kwargs or {})

    Matched().__enter__()

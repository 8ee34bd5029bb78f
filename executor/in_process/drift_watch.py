"""Copies of a model that drift apart between ranks, in any kind of script: found by samples now and then, and stopped.

What DistributedDataParallel keeps equal is compared between the ranks of its process group, and what hybrid sharding
copies between the copies. Buffers are not: those that DDP does not send the script may have left to each rank. Ranks
tell each other through the store and never wait, so no collective of ours is added, and nothing hangs where one does
not come. Only what was told after as many collectives of the group is compared: at one and the same step.
"""

import collections
import contextlib
import functools
import struct
import time
import weakref
import zlib
from collections.abc import Callable
from typing import Any

from advisor.executor.in_process import drift
from advisor.executor.in_process.meet import the_store

FIRST, LEAST = 4, 16  # optimizer steps: the first that is looked at, and the fewest between two
SHARE = 5e-4  # of the time, that looking may take
TENSORS, NUMBERS = 8, 128  # that are looked at each time, and of each
PATIENCE = 6  # looks for what others told, ever more steps apart, before it is given up
APART = (
    "the ranks of this run train different weights: before optimizer step {step}, {name} of {model} on rank {mine} is "
    "not what it is on rank {first} (relative difference {by:.0e}), and {kept} Usual causes: weights "
    "loaded or changed on one rank alone after the wrap call, forward passes through model.module instead of the "
    "wrapper, parameters unfrozen after it, or a step that no_sync() left without an average"
)
EQUALLY = ("allreduce_hook", "bf16_compress_hook", "fp16_compress_hook")  # hooks that leave gradients equal
Named = tuple[str, Callable[[], Any]]  # a parameter's name, and how it is found
BY_DDP = "DistributedDataParallel sends gradients only, so that this stays."
BY_SHARDS = "copies of a sharded model get equal gradients only, so that this stays."


class DriftWatch:
    """The models of this process that have copies on other ranks."""

    def __init__(self, guard: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._models: list[weakref.ref[Any]] = []  # DistributedDataParallel
        self._watched: weakref.WeakKeyDictionary[Any, list[Copies]] = weakref.WeakKeyDictionary()  # by optimizer
        self._all: list[Copies] = []
        self._made: collections.Counter[tuple[int, ...]] = collections.Counter()  # by the ranks of a group
        self._look = guard(self._before_step)

    def watch(self, model: Any) -> None:
        """Watch a model that DistributedDataParallel was wrapped around."""
        self._models.append(weakref.ref(model))
        self._watched.clear()

    def steer_optimizers(self, optimizer: Any) -> None:
        def before_step(optimizer: Any, *_: Any) -> None:
            found = self._look(optimizer)
            if found:
                raise RuntimeError(found)

        before_step._torchdynamo_disable = True  # type: ignore[attr-defined]
        optimizer.register_optimizer_step_pre_hook(before_step)

    def _before_step(self, optimizer: Any) -> str | None:
        """Return what is wrong, if anything: by now all that follows the last step has been done, on all ranks."""
        if optimizer not in self._watched:
            self._watched[optimizer] = self._copies(optimizer)
        return next(filter(None, [copies.before_step() for copies in self._watched[optimizer]]), None)

    def _copies(self, optimizer: Any) -> "list[Copies]":
        """Return what of an optimizer's parameters has copies: of each DistributedDataParallel, and hybrid shards."""
        owned = {id(one): one for group in optimizer.param_groups for one in group["params"]}
        found: list[tuple[Any, list[Named], str, str]] = []
        names: list[Named]
        for model in filter(None, (ref() for ref in self._models)):
            kept = kept_equal(model)
            if any(id(one) in owned for _, one in kept):
                names = [(name, functools.partial(of_model, weakref.ref(model), name)) for name, _ in kept]
                found.append((model.process_group, names, type(model.module).__name__, BY_DDP))
        sharded = {number: one for number, one in enumerate(owned.values()) if copied(one)}
        for mesh in {id(one.device_mesh): one.device_mesh for one in sharded.values()}.values():
            names = [
                (
                    f"a weight of shape {list(one.shape)}",
                    functools.partial(of_optimizer, weakref.ref(optimizer), number),
                )
                for number, one in sharded.items()
                if one.device_mesh is mesh
            ]
            found.append((mesh.get_group(0), names, "the model", BY_SHARDS))
        return [self._known(*one) for one in found]

    def _known(self, group: Any, names: list[Named], model: str, kept: str) -> "Copies":
        """Return what is known of these parameters already: two optimizers may share a model."""
        import torch.distributed as dist

        first = names[0][1]()
        for copies in self._all:
            if copies.first() is first:
                return copies
        ranks = tuple(dist.get_process_group_ranks(group))
        self._made[ranks] += 1
        self._all.append(Copies(group, names, model, kept, f"{'-'.join(map(str, ranks))}/{self._made[ranks]}"))
        return self._all[-1]


class Copies:
    """Parameters that should be equal on the ranks of a group.

    They are looked up anew each time. torch refuses to move shards that anything holds a weak reference to.
    """

    def __init__(self, group: Any, names: list[Named], model: str, kept: str, key: str) -> None:
        import torch.distributed as dist

        self._group, self._model, self._kept, self._key = group, model, kept, key
        self._names = names
        self._rank, (self._first, *others) = dist.get_rank(), dist.get_process_group_ranks(group)
        self._others = others if self._rank == self._first else [self._first]  # whom this rank compares itself with
        self._steps, self._every = 0, LEAST
        self._since = 0, time.perf_counter()  # the last look: before which step, and when
        self._told: tuple[int, list[str], bytes] | None = None  # before which step, which parameters, and what
        self._next = self._waited = 0  # before which step others' words are looked for, and how often they were
        self._old: collections.deque[str] = collections.deque()  # our own words that others may still look for

    def first(self) -> Any:
        return self._names[0][1]()

    def before_step(self) -> str | None:
        self._steps += 1
        if not self._others:
            return None
        if self._told is not None and self._steps >= self._next:
            return self._compare()
        if self._steps == FIRST or self._steps % self._every == 0:
            self._tell()
        return None

    def _tell(self) -> None:
        """Tell samples of some parameters, others each time, and settle how soon to look again."""
        import torch

        start = time.perf_counter()
        # Not in turn: looks are powers of two apart, and would leave some out.
        at = zlib.crc32(str(self._steps).encode()) % len(self._names)
        turn = [*self._names[at:], *self._names[:at]][:TENSORS]
        now = [(name, one) for name, find in turn if (one := find()) is not None and one.requires_grad]
        if now:
            with torch.set_grad_enabled(False):
                some = [drift.sample(local(one), NUMBERS) for _, one in now]
                numbers = torch.cat([one.to(some[0].device) for one in some]).tolist()
            anchor = self._group._get_sequence_number_for_group()
            word = struct.pack(f"<q{len(numbers)}d", anchor, *numbers)
            self._leave(self._key_of(self._steps, self._rank), word)
            self._told, self._next, self._waited = (self._steps, [name for name, _ in now], word), self._steps + 1, 0
        self._pace(start, time.perf_counter())

    def _leave(self, key: str, word: bytes) -> None:
        """Leave a word for the other ranks, and take the one before the last away."""
        the_store().set(key, word)
        self._old.append(key)
        if len(self._old) > 2:
            with contextlib.suppress(RuntimeError):  # not all stores can delete
                the_store().delete_key(self._old.popleft())

    def _pace(self, start: float, end: float) -> None:
        """Settle how soon to look again.

        In powers of two, so that ranks that settle on different ones still meet at every second.
        """
        step, then = self._since
        self._since = self._steps, end
        wanted = (end - start) / SHARE / max((end - then) / max(1, self._steps - step), 1e-6)
        self._every = LEAST
        while self._every < wanted:
            self._every *= 2

    def _compare(self) -> str | None:
        """Return what differs from what another rank has told, if that is there and is of the same moment."""
        assert self._told is not None
        step, names, mine = self._told
        keys = [self._key_of(step, other) for other in self._others]
        if not the_store().check(keys):
            self._waited += 1
            self._next = self._steps + 2**self._waited
            if self._waited == PATIENCE:
                self._told = None
            return None
        self._told = None
        words = zip(self._others, map(the_store().get, keys), strict=True)
        differing = (self._differing(step, names, mine, other, theirs) for other, theirs in words)
        return next(filter(None, differing), None)

    def _differing(self, step: int, names: list[str], mine: bytes, other: int, theirs: bytes) -> str | None:
        if theirs == mine or len(theirs) != len(mine) or theirs[:8] != mine[:8]:
            return None
        own, others = (struct.unpack(f"<{len(names) * NUMBERS}d", word[8:]) for word in (mine, theirs))
        for place, name in enumerate(names):
            part = slice(place * NUMBERS, (place + 1) * NUMBERS)
            by = drift.difference(own[part], others[part])
            if by > drift.APART:
                facts = {"step": step, "name": name, "model": self._model, "kept": self._kept, "by": by}
                return APART.format(**facts, mine=other if self._rank == self._first else self._rank, first=self._first)
        return None

    def _key_of(self, step: int, rank: int) -> str:
        return f"advisor/drift/{self._key}/{step}/{rank}"


def of_model(model: "weakref.ref[Any]", name: str) -> Any:
    """Return a parameter of a DistributedDataParallel, None where it is gone."""
    alive = model()
    with contextlib.suppress(AttributeError):
        return None if alive is None else alive.module.get_parameter(name)
    return None


def of_optimizer(optimizer: "weakref.ref[Any]", number: int) -> Any:
    """Return an optimizer's parameter by its place, None where it is gone."""
    alive = optimizer()
    groups = () if alive is None else alive.param_groups
    owned = list({id(one): one for group in groups for one in group["params"]}.values())
    return owned[number] if number < len(owned) and copied(owned[number]) else None


def kept_equal(model: Any) -> list[tuple[str, Any]]:
    """Return the parameters that a DistributedDataParallel keeps equal, with their names."""
    hooks = [hook for hook, _ in getattr(model, "_comm_hooks", ())]
    if any(getattr(hook, "__name__", "") not in EQUALLY for hook in hooks):
        return []  # it may average weights now and then instead of gradients
    ignored = getattr(model, "parameters_to_ignore", ())
    found = [(name, one) for name, one in model.module.named_parameters() if name not in ignored]
    # Optimizers that work inside the backward pass are not all at the same place.
    return [] if any(hasattr(one, "_in_backward_optimizers") for _, one in found) else found


def copied(parameter: Any) -> bool:
    """Say whether a parameter is a shard of which other ranks have a copy: hybrid sharding on a 2-D mesh."""
    kinds: Any = getattr(parameter, "placements", ())
    return len(kinds) == 2 and kinds[0].is_replicate() and kinds[1].is_shard()


def local(parameter: Any) -> Any:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter

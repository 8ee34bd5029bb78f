"""Gradients of a plain script, added up over ranks while the backward pass still runs.

Backward passes that begin at the same place of the script are of one kind. After the first of a kind all ranks agree on
which parameters it reaches and in which order; these make buckets. In later ones a bucket is sent as soon as all of its
parameters are ready and those before it are sent: all ranks send the same ones in the same order, whatever their own
slice reaches. What a pass adds is kept apart from the gradients that were there before, which are equal already.
"""

import functools
import sys
import weakref
from typing import Any

from advisor.executor.in_process.plain_buckets import Bucket, buckets
from advisor.executor.in_process.plain_share import Ranks

DEPTH = 8  # frames that tell one place from another: several losses may share one function that goes backward
DEAD, UNREACHED = 0.0, -1.0  # in place of where a parameter came in a pass
TWICE = (
    "a parameter got two gradients in one backward pass, as reentrant checkpoints give, and none did at first: "
    "pass use_reentrant=False to torch.utils.checkpoint.checkpoint, or train on one GPU: --gpus 1"
)


class Kind:
    """The backward passes that begin at one place: what they reach, on any rank."""

    def __init__(self, numbers: list[int], made: list[Bucket], complete: bool, overlaps: bool) -> None:
        self.numbers, self.buckets = numbers, made
        self.complete = complete  # no parameter is left that such a pass could reach
        self.overlaps = overlaps
        self.places = {number: i for i, bucket in enumerate(made) for number in bucket.numbers}

    def extend(self, numbers: list[int], made: list[Bucket]) -> None:
        self.places |= {number: i for i, bucket in enumerate(made, len(self.buckets)) for number in bucket.numbers}
        self.numbers += numbers
        self.buckets += made


class Pass:
    """One backward pass. Of an unknown kind, or one that may not be reduced, nothing is sent before it has ended."""

    def __init__(self, key: Any, kind: Kind | None, divisor: int = 1) -> None:
        self.key, self.kind, self._divisor = key, kind, divisor
        self.arrived: list[int] = []  # the parameters that have got their gradient
        self.held: list[tuple[Any, Any]] = []  # parameters, and the gradients that they had before
        self.nested = False  # a backward pass within this one, as reentrant checkpoints make
        self.sent = 0  # buckets
        self.views: list[tuple[Bucket, list[Any]]] = []
        self._works: list[Any] = []
        self._left = [len(bucket.numbers) for bucket in kind.buckets] if kind is not None and kind.overlaps else []

    def arrive(self, number: int) -> None:
        """Take note of a parameter whose gradient is there, and send what is ready."""
        self.arrived.append(number)
        if self.kind is None or (place := self.kind.places.get(number)) is None:
            return
        if place < self.sent:
            raise RuntimeError(TWICE)
        if self.nested or not self._left:
            return
        self._left[place] -= 1
        while self.sent < len(self._left) and not self._left[self.sent]:
            self.send(self.kind.buckets[self.sent])

    def send(self, bucket: Bucket) -> None:
        self.sent += 1
        flat, views = bucket.pack()
        self.views.append((bucket, views))
        if self._divisor != 1:
            flat.div_(self._divisor)
        self.reduce(flat)

    def reduce(self, tensor: Any) -> None:
        import torch.distributed as dist

        self._works.append(dist.all_reduce(tensor, async_op=True))

    def wait(self) -> None:
        """Wait for what was sent; on a GPU its stream does, not the host."""
        for work in self._works:
            work.wait()
        self._works.clear()


class Gradients:
    """The parameters whose gradients are added up, by numbers that are the same on all ranks."""

    def __init__(self, ranks: Ranks, bucket: int) -> None:
        self._ranks, self._bucket = ranks, bucket
        self._parameters: list[weakref.ref[Any]] = []
        self._trained: list[int] = []  # those that were ever trained, and live
        self._frozen: list[int] = []
        self._kinds: dict[Any, Kind] = {}
        self._late = False  # a pass has ended with buckets that were not ready
        self.running: Pass | None = None
        self.divisor = 1  # of what is added up: the ranks where FSDP averages other gradients of the same losses

    def add(self, parameters: list[Any]) -> None:
        self._frozen += range(len(self._parameters), len(self._parameters) + len(parameters))
        self._parameters += map(weakref.ref, parameters)

    def __bool__(self) -> bool:
        return bool(self._parameters)

    def begin(self, reduces: bool) -> Pass:
        """Begin a backward pass; one that does not reduce is only watched."""
        if self._frozen:
            self._hook()
        if not reduces:
            self.running = Pass(None, None)
            return self.running
        key = whence()
        current = Pass(key, self._kinds.get(key), self.divisor)
        dead = False
        for number in self._trained:
            parameter = self._parameters[number]()
            if parameter is None:
                dead = True
            elif (before := parameter.grad) is not None:
                current.held.append((parameter, before))
                parameter.grad = None
        if dead:
            self._trained = [number for number in self._trained if self._parameters[number]() is not None]
        self.running = current
        return current

    def end(self, current: Pass, loss: Any) -> Any:
        """Add up what the pass has added on all ranks, and the loss; return the latter, if there is one.

        A parameter that this rank's slice did not reach but another's did gets its gradient as well; one that none
        reached is left as it was.
        """
        kind = current.kind
        if kind is None:
            kind = self._kinds[current.key] = self._agree(current)
        else:
            self._late |= kind.overlaps and current.sent < len(kind.buckets)
        for bucket in kind.buckets[current.sent :]:
            current.send(bucket)
        if current.kind is not None and not kind.complete:
            for bucket in self._more(current, kind):
                current.send(bucket)
        total = self._finish(current, kind, loss) if kind.buckets else None
        self.leave(current)
        return total

    def leave(self, current: Pass) -> None:
        """Put back the gradients from before a pass, with what it has added."""
        import torch

        both = [(before, parameter.grad) for parameter, before in current.held if parameter.grad is not None]
        if both:
            befores, added = (list(side) for side in zip(*both, strict=True))
            torch._foreach_add_(befores, added)
        for parameter, before in current.held:
            parameter.grad = before
        self.running = None

    def outdated(self) -> bool:
        """Say whether a pass since the last call sent buckets late."""
        late, self._late = self._late, False
        return late

    def forget(self) -> None:
        """Have all ranks agree anew on what passes reach."""
        self._kinds.clear()

    def _hook(self) -> None:
        """Hear of the gradients of those that are trained now."""
        frozen: list[int] = []
        for number in self._frozen:
            parameter = self._parameters[number]()
            if parameter is None:
                continue
            if not parameter.requires_grad:
                frozen.append(number)
                continue
            parameter.register_post_accumulate_grad_hook(functools.partial(self._arrived, number))
            self._trained.append(number)
            self._kinds.clear()
        self._frozen = frozen

    def _arrived(self, number: int, _: Any) -> None:
        if self.running is not None:
            self.running.arrive(number)

    def _agree(self, current: Pass) -> Kind:
        """Tell all ranks what this pass has reached, and make buckets in the order of the first that reached it."""
        places = [DEAD] * len(self._parameters)
        foreign = False
        for number in self._trained:
            parameter = self._parameters[number]()
            if parameter is not None:
                places[number] = UNREACHED
                foreign |= len(parameter._post_accumulate_grad_hooks) > 1
        for place, number in enumerate(dict.fromkeys(current.arrived), 1):
            places[number] = float(place)
        everyone = self._ranks.gather([float(current.nested or foreign), *places])
        order = {number: None for _, *row in everyone for _, number in sorted(_reached(row))}
        complete = all(
            place != UNREACHED or number in order for _, *row in everyone for number, place in enumerate(row)
        )
        return Kind(list(order), self._buckets(list(order)), complete, not any(one[0] for one in everyone))

    def _more(self, current: Pass, kind: Kind) -> list[Bucket]:
        """Return buckets of what this pass has reached on any rank, and no pass of its kind before."""
        new = {number for number in current.arrived if number not in kind.places}
        if not any(one[0] for one in self._ranks.gather([float(len(new))])):
            return []
        everyone = self._ranks.gather([float(number in new) for number in range(len(self._parameters))])
        numbers = [number for number, on in enumerate(zip(*everyone, strict=True)) if any(on)]
        made = self._buckets(numbers)
        kind.extend(numbers, made)
        return made

    def _buckets(self, numbers: list[int]) -> list[Bucket]:
        return list(buckets([(number, self._parameters[number]) for number in numbers], self._bucket))

    def _finish(self, current: Pass, kind: Kind, loss: Any) -> Any:
        """Wait for all gradients, and hand them out."""
        import torch

        reached = set(current.arrived)
        missing = [i for i, number in enumerate(kind.numbers) if number not in reached]
        flags = torch.ones(len(kind.numbers) + 1, dtype=torch.float64, device=current.views[0][1][0].device)
        if missing:
            flags[missing] = 0.0
        if loss is not None:
            flags[-1] = loss.reshape(()) * (self._ranks.factor() / self._ranks.ranks)
        current.reduce(flags)
        current.wait()
        if missing:  # else there is nothing to ask, and no GPU to wait for
            told = flags.tolist()
            elsewhere = {kind.numbers[i] for i in missing if told[i]}
            for bucket, views in current.views:
                bucket.give(views, elsewhere)
        return None if loss is None else flags[-1].reshape(loss.shape)


def _reached(places: list[float]) -> list[tuple[float, int]]:
    return [(place, number) for number, place in enumerate(places) if place > 0]


def whence() -> tuple[Any, ...]:
    """Return what tells the place of the script, and how it came there."""
    frame = sys._getframe(3)
    key: list[tuple[str, int]] = []
    while frame is not None and len(key) < DEPTH:
        key.append((frame.f_code.co_filename, frame.f_lasti))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(key)

"""The optimizer steps of a training loop: which are once per micro-batch, which once per window of them."""

import ast
import functools
from collections.abc import Sequence
from typing import NamedTuple

from advisor.rules.source.source import Source
from advisor.rules.source.value import Event, Guard, Loop, Value

STEPS = ("<optimizer>.step", "<scaler>.step", "<sharded_scaler>.step")
DIVIDED = ("tensor Div", "tensor Mult", "tensor FloorDiv")


class Window(NamedTuple):
    """Gradients that are accumulated: a backward pass each micro-batch, a step each few of them."""

    backward: Event
    step: Event
    loop: Loop  # over the micro-batches
    boundary: Guard | None  # the condition on which the step is made; None where the loop ends


@functools.lru_cache(maxsize=1)
def windows(source: Source) -> list[Window]:
    """Return what is surely accumulation, done by hand."""
    steps: dict[Loop, list[Event]] = {}
    for event in source.calls(*STEPS):
        if event.loops and not event.alone:
            steps.setdefault(event.loops[0], []).append(event)
    found = (_window(backward, steps.get(backward.loops[0], [])) for backward in source.backwards if backward.loops)
    return [window for window in found if window is not None]


def _window(backward: Event, steps: Sequence[Event]) -> Window | None:
    engine = backward.receiver is not None and backward.receiver.role in ("engine", "accelerator", "fabric")
    if engine or backward.inside("accumulate"):
        return None
    loop = backward.loops[-1]
    for step in steps:
        if _never_together(backward, step):
            continue
        boundary = next((g for g in step.guards if g not in backward.guards and _counts(g)), None)
        if loop in step.loops and boundary is not None:
            return Window(backward, step, loop, boundary)
        if _behind(loop, step, backward):
            return Window(backward, step, loop, None)
    return None


def _never_together(one: Event, other: Event) -> bool:
    """Say whether the two stand in opposite branches of one condition."""
    return any(a.node is b.node and a.negated != b.negated for a in one.guards for b in other.guards)


def _counts(guard: Guard) -> bool:
    """Say whether a condition counts micro-batches: `(i + 1) % accumulation == 0`."""
    node = guard.value.node
    if guard.by_rank or guard.handler or node is None:
        return False
    return any(isinstance(part, ast.Mod) for part in ast.walk(node))


def _behind(loop: Loop, step: Event, backward: Event) -> bool:
    """Say whether the step is made behind a loop over a few micro-batches, inside the loop that trains."""
    if loop in step.loops or loop.loader is not None or step.index < backward.index:
        return False
    short = isinstance(loop.node, ast.For) and loop.over is not None and loop.over.name in ("range", "")
    return short and bool(step.loops) and backward.loops[:-1] == step.loops and loop.file == step.file


def loss_of(backward: Event) -> Value | None:
    """Return the loss that a backward pass starts from, without the scaler's factor."""
    loss = backward.args[0] if backward.args else backward.receiver
    return loss.inner if loss is not None and loss.name == "scaled" and loss.inner is not None else loss


def origin(loss: Value | None) -> tuple[Value | None, bool]:
    """Return the call that computed a loss, and whether the loss has been divided or multiplied since.

    None where it was computed in a way that is not followed.
    """
    divided = False
    for _ in range(8):
        if loss is None:
            return None, divided
        if loss.name in DIVIDED:
            divided = True
        if loss.name.startswith("tensor ") and loss.inner is not None:
            loss = loss.inner
            continue
        return loss, divided
    return None, divided


def is_mean_loss(value: Value | None) -> bool:
    """Say whether it is what a loss function of torch returns when nothing else was asked for."""
    if value is None or not value.name:
        return False
    by_function = value.name.startswith("torch.nn.functional.") and value.name.endswith(("loss", "cross_entropy"))
    reduction = reduction_of(value)
    return (by_function or value.name == "<loss_fn>()") and reduction in (None, "mean")


def reduction_of(value: Value) -> object:
    made = value.owner if value.name == "<loss_fn>()" else value
    given = made.words.get("reduction") if made is not None else None
    return given.const if given is not None else None


def ignores_index(value: Value) -> bool:
    """Say whether a loss leaves out padding, so that its mean is over a varying number of tokens."""
    made = value.owner if value.name == "<loss_fn>()" else value
    ignored = made.words.get("ignore_index") if made is not None else None
    return ignored is not None and ignored.const != -1  # no token has -1: it is there in case

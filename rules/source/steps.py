"""The optimizer steps of a training loop: which are once per micro-batch, which once per window of them."""

import ast
from collections.abc import Iterator
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


def windows(source: Source) -> Iterator[Window]:
    """Yield what is surely accumulation, done by hand."""
    steps = [event for event in source.calls(*STEPS) if not event.alone]
    for backward in source.backwards:
        engine = backward.receiver is not None and backward.receiver.role in ("engine", "accelerator", "fabric")
        if not backward.loops or engine or backward.inside("accumulate"):
            continue
        loop = backward.loops[-1]
        for step in steps:
            if _never_together(backward, step):
                continue
            boundary = next((g for g in step.guards if g not in backward.guards and _counts(g, backward)), None)
            if loop in step.loops and boundary is not None:
                yield Window(backward, step, loop, boundary)
                break
            if _behind(loop, step, backward):
                yield Window(backward, step, loop, None)
                break


def _never_together(one: Event, other: Event) -> bool:
    """Say whether the two stand in opposite branches of one condition."""
    return any(a.node is b.node and a.negated != b.negated for a in one.guards for b in other.guards)


def _counts(guard: Guard, backward: Event) -> bool:
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

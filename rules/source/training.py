"""What a script does to parameters: which it freezes or trains, and where."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from advisor.rules.source.source import Source
from advisor.rules.source.value import Event, Value
from advisor.rules.source.wraps import roots


class Change(NamedTuple):
    """`requires_grad` is set: on a whole model, a `part` of it, or `some` parameters, chosen by a condition."""

    event: Event
    models: list[Value]  # that the parameters belong to, the innermost first
    trains: bool
    part: bool
    some: bool


def requires_grad_changes(source: Source) -> Iterator[Change]:
    for event in source.events:
        target = event.receiver
        if target is None or target.role not in ("parameter", "layer", "model", "ddp", "parameters", "compiled"):
            continue
        if event.kind == "assign" and event.name == "requires_grad":
            given = event.value.const
        elif event.kind == "call" and event.name.endswith(".requires_grad_"):
            flag = event.argument("requires_grad", 0)
            given = True if flag is None else flag.const
        else:
            continue
        models = roots(target)
        if models and isinstance(given, bool):
            yield Change(event, models, given, _part(target), _some(event))


def _part(target: Value) -> bool:
    """Say whether it is a layer, or a parameter reached through one."""
    value: Value | None = target
    for _ in range(6):
        if value is None or value.role in ("model", "ddp", "fsdp", "compiled"):
            return value is not None and value.owner is not None and value.owner.role == "model"
        if value.role == "layer":
            return True
        value = value.inner or value.owner
    return False


def _some(event: Event) -> bool:
    """Say whether a condition inside the loop over parameters chooses: `if "lora" not in name`."""
    loop = event.loops[-1].node if event.loops else None
    if not isinstance(loop, ast.For):
        return False
    return any(loop.lineno < guard.line <= (loop.end_lineno or 0) for guard in event.guards)

"""The checkpoint's keys begin with `module.`.

## What it finds
The `state_dict()` of a DistributedDataParallel or DataParallel object, saved by a script that neither loads it back
into such an object nor strips the prefix.

## Why it matters
The wrapper puts `module.` before each key. A script that loads the file into the bare model gets "Missing key(s) in
state_dict", or, with `strict=False`, silently keeps random weights.

## What to do
Save `model.module.state_dict()`; or strip the prefix on load with
`torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")`.

## Source
https://docs.pytorch.org/docs/stable/generated/torch.nn.modules.utils.consume_prefix_in_state_dict_if_present.html
"""

import ast
from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.saves import saves, states_in
from advisor.rules.source.source import Source
from advisor.rules.source.value import Event

RULE = ("SCR154", "module-prefix-saved")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None or _strips(case.source):
        return
    loads = any(event.receiver and event.receiver.is_a("ddp", "dp") for event in _loads(case.source))
    seen: set[tuple[str, int]] = set()
    for save in saves(case.source):
        wrapped = next((owner for owner in states_in(save.content) if owner.role in ("ddp", "dp")), None)
        if wrapped is None or (save.event.file, save.event.line) in seen:
            continue
        seen.add((save.event.file, save.event.line))
        yield found(
            case,
            RULE,
            "info" if loads else "warning",
            save.event,
            happens="this is the wrapper's state: each key begins with 'module.' and does not load into the bare model",
            remedy="torch.save(model.module.state_dict(), path)",
        )


def _loads(source: Source) -> Iterator[Event]:
    return (event for event in source.events if event.name.endswith(".load_state_dict"))


def _strips(source: Source) -> bool:
    """Say whether the script knows of the prefix."""
    constants = (node for module in source.modules for node in module.nodes)
    if any(isinstance(node, ast.Constant) and node.value in ("module.", "module") for node in constants):
        return True
    return any(event.name.endswith("consume_prefix_in_state_dict_if_present") for event in source.events)

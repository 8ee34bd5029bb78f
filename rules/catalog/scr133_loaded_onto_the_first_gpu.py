"""Every rank loads the checkpoint onto the GPU that it was saved from.

## What it finds
`torch.load` without `map_location` in a script that trains on several ranks, whose result goes to `load_state_dict`.

## Why it matters
Tensors go back to the device they were saved from: GPU 0 for a checkpoint of rank 0. Each other rank then holds a
context and a copy there too, some 700 MB, and a run that fitted goes out of memory when it resumes.

## What to do
`torch.load(path, map_location="cpu")`, or `map_location=device`.

## Source
https://docs.pytorch.org/docs/stable/generated/torch.load.html;
https://discuss.pytorch.org/t/73021
"""

import ast
import re
from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.value import Event, Value

RULE = ("SCR133", "loaded-onto-the-first-gpu")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None or not case.source.many_ranks:
        return
    states = [event for event in case.source.events if event.name.endswith(".load_state_dict")]
    loads = [event for event in states if not _holds_numbers(event)]
    seen: set[tuple[str, int]] = set()
    for event in case.source.calls("torch.load"):
        where = event.argument("map_location", 1)
        mapped = where is not None and where.const is not None
        used = any(_comes_from(given, event.value) for load in loads for given in (*load.args, *load.words.values()))
        if mapped or not used or not event.reached or event.alone or event.by_rank or (event.file, event.line) in seen:
            continue
        seen.add((event.file, event.line))
        yield found(
            case,
            RULE,
            "error",
            event,
            happens="the tensors go back to the GPU they were saved from: each rank also takes a context and a copy on "
            "GPU 0",
            remedy='torch.load(path, map_location="cpu")',
        )


def _holds_numbers(event: Event) -> bool:
    """Say whether it is the state of a scheduler or scaler, which has no tensors."""
    node = event.node.func if isinstance(event.node, ast.Call) else event.node
    return re.search(r"(?i)sched|scaler", ast.unparse(node)) is not None


def _comes_from(value: Value, loaded: Value) -> bool:
    """Say whether a value is what was loaded, or a part or a copy of it."""
    seen: list[Value] = []
    waiting = [value]
    while waiting and len(seen) < 60:
        part = waiting.pop(0)
        if part is loaded:
            return True
        if part not in seen:
            seen.append(part)
            waiting += [*filter(None, [part.owner, part.inner]), *part.options, *part.args, *(part.items or ())]
    return False

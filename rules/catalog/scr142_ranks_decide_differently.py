"""Ranks decide differently whether to go on: some leave the loop, the others wait for them.

## What it finds
`break`, `continue`, `return` or `while` in a training loop, or a collective, under a condition on a value that differs
between ranks: the loss or a metric of the rank's own batch, a flag that rank 0 alone has set, the result of
`dist.reduce`, which is right on one rank only, or a clock. Silent once the value has been through `all_reduce`,
`broadcast` or `all_gather`.

## Why it matters
The first rank to leave stops taking part in the reduction of gradients; the others hang in it until the timeout. A
barrier before the `if` does not help: it shares no value.

## What to do
Make the decision the same on all ranks first: `dist.all_reduce` the value, or `dist.broadcast` the flag from rank 0.

## Source
https://github.com/pytorch/pytorch/issues/23425; https://github.com/Lightning-AI/pytorch-lightning/issues/3325;
https://docs.pytorch.org/docs/stable/distributed.html
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding, Severity
from advisor.rules.rule import Case, rule
from advisor.rules.source.collectives import answered, meets_in
from advisor.rules.source.report import found
from advisor.rules.source.source import Source
from advisor.rules.source.value import CLOCK, DATA, LONE, RANK, Event, Guard

RULE = ("SCR142", "ranks-decide-differently")
DIFFER = {
    LONE: "is right on one rank only",
    DATA: "comes from each rank's own batches",
    RANK: "depends on the rank",
    CLOCK: "is each rank's own clock",
}


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None:
        return
    seen: set[tuple[str, int]] = set()
    for event, guard in (*_leaves(case.source), *_collectives(case.source)):
        if (guard.file, guard.line) in seen:
            continue
        seen.add((guard.file, guard.line))
        why = next(kind for kind in DIFFER if kind in guard.taint)
        severity: Severity = "warning" if why == CLOCK else "error"
        yield found(
            case,
            RULE,
            severity,
            event if event.kind == "leave" else guard,
            happens=f"the condition of line {guard.line} {DIFFER[why]}; ranks that go the other way wait in the next "
            "collective: a hang",
            remedy="make ranks agree before the condition: dist.all_reduce(value), or dist.broadcast(flag, src=0); a "
            "barrier shares no value",
            condition=guard.line,
            differs=why,
        )


def _leaves(source: Source) -> Iterator[tuple[Event, Guard]]:
    """Yield what leaves a loop in which ranks meet, with the condition that they don't share."""
    for event in source.events:
        loop = event.left
        if event.kind != "leave" or loop is None or event.alone:
            continue
        guard = next((g for g in event.guards if _differs(g) and _inside(g, loop.file, loop.node)), None)
        if guard is None or (guard.by_rank and guard.rest):
            continue
        met = list(meets_in(source, loop))
        if event.name == "continue":
            met = [other for other in met if other.index > event.index]
        if met and not all(other.by_rank is not None for other in met):
            yield event, guard


def _collectives(source: Source) -> Iterator[tuple[Event, Guard]]:
    for event in source.collectives:
        guard = next((g for g in event.guards if _differs(g) and not g.by_rank and not g.rest), None)
        if guard is not None and not answered(source, event) and not event.alone:
            yield event, guard


def _differs(guard: Guard) -> bool:
    if guard.split in ("distributed", "alone", "unsure"):
        return False
    return bool(guard.taint & {LONE, DATA, CLOCK}) or (guard.by_rank and RANK in guard.taint)


def _inside(guard: Guard, file: str, node: object) -> bool:
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    return guard.file != file or first <= guard.line <= last

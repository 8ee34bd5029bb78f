"""The checkpoint is guarded by the local rank: on several hosts, each writes it.

## What it finds
`torch.save` under a condition on LOCAL_RANK alone, to a path that depends on no rank. Silent for paths that name a
local disk, such as /tmp or /scratch.

## Why it matters
`local_rank == 0` is true once per host. With a shared file system, the first processes of all hosts write one file
at the same time and corrupt it. On one host nothing is wrong, so that it is found late.

## What to do
Guard by the global rank: `if dist.get_rank() == 0:`.

## Source
https://docs.pytorch.org/docs/stable/elastic/run.html, the meaning of LOCAL_RANK and RANK
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.saves import NODE_LOCAL, Save, saves
from advisor.rules.source.value import LOCAL_RANK, LONE, RANK, Event, Guard

RULE = ("SCR152", "saved-once-per-host")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None or not case.source.many_ranks:
        return
    for save in saves(case.source):
        if not _by_local_rank(save) or save.per_rank or save.text.startswith(NODE_LOCAL):
            continue
        yield found(
            case,
            RULE,
            "warning",
            _condition(save),
            happens="local rank 0 exists once per host: with several hosts and a shared file system, all of them write "
            f"the file of line {save.event.line} at once",
            remedy="guard by the global rank: if dist.get_rank() == 0",
        )


def _condition(save: Save) -> Event | Guard:
    """Return the condition that lets local rank 0 in, where it is around the call in its own file."""
    guard = save.event.by_rank
    return guard if guard is not None and guard.file == save.event.file and not guard.rest else save.event


def _by_local_rank(save: Save) -> bool:
    guards = [guard for guard in save.event.guards if guard.by_rank]
    return bool(guards) and all(LOCAL_RANK in g.taint and not g.taint & {RANK, LONE} for g in guards)

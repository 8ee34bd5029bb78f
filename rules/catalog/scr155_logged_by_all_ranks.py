"""Every rank prints, shows a progress bar or writes the log.

## What it finds
`print` of a value of the rank's own, a progress bar, or a log file opened for writing, in a training loop that all
ranks go through. Silent where the rank is part of what is printed.

## Why it matters
Each line comes once per rank, and the figure of one rank is taken for that of all. Progress bars overwrite each
other, log files are written by several processes at once.

## What to do
Reduce the value, then print under `if rank == 0:`; `tqdm(..., disable=rank != 0)`.

## Source
https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html; tqdm, `disable`
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.saves import BY_RANK
from advisor.rules.source.value import DATA, LONE, Event, Value

RULE = ("SCR155", "logged-by-all-ranks")
BARS = ("tqdm.tqdm", "tqdm.trange", "tqdm.auto.trange", "rich.progress.track")
FILES = ("open", "logging.FileHandler", "logging.basicConfig")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None or not case.source.many_ranks:
        return
    seen: set[tuple[str, int]] = set()
    for event in case.source.events:
        what = _repeats(event)
        guarded = any(guard.taint & (BY_RANK | {LONE}) and guard.split for guard in event.guards)
        if not what or guarded or event.alone or event.in_handler or (event.file, event.line) in seen:
            continue
        seen.add((event.file, event.line))
        yield found(
            case,
            RULE,
            "info",
            event,
            happens=f"{what} once per rank, and one rank's figure is taken for that of all",
            remedy="reduce the value over ranks, then: if rank == 0 (tqdm: disable=rank != 0)",
        )


def _repeats(event: Event) -> str:
    """Say what each rank does here; "" where it is nothing to speak of."""
    if event.kind != "call" or not event.reached:
        return ""
    given = (*event.args, *event.words.values())
    if any(_names_rank(value) for value in given):
        return ""
    if event.name == "print" and event.loops and any(value.taint & {DATA} for value in given):
        return "this is printed"
    if event.name in BARS and "disable" not in event.words:
        return "this bar is shown"
    if event.name == "open" and _writes(event) and event.loops:
        return "this file is written"
    if event.name == "logging.FileHandler" or (event.name == "logging.basicConfig" and "filename" in event.words):
        return "this log is written"
    return ""


def _names_rank(value: Value) -> bool:
    return bool(value.taint & BY_RANK) or any(item.taint & BY_RANK for item in value.items or ())


def _writes(event: Event) -> bool:
    mode = event.argument("mode", 1)
    return mode is not None and isinstance(mode.const, str) and mode.const.strip("bt+") in ("w", "a")

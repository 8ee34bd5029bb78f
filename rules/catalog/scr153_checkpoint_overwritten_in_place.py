"""A checkpoint is written over the last good one.

## What it finds
`torch.save` in a loop to a path that stays the same, in a script that renames nothing.

## Why it matters
A process that is killed while it writes (a time limit, a full disk, pre-emption) leaves half a file, and the previous
checkpoint is gone.

## What to do
Write beside it and rename, which is atomic: `torch.save(state, path + ".tmp"); os.replace(path + ".tmp", path)`.

## Source
https://docs.python.org/3/library/os.html#os.replace; docs/checkpoints.md
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.saves import saves

RULE = ("SCR153", "checkpoint-overwritten-in-place")
RENAMES = ("os.replace", "os.rename", "shutil.move", "<>.rename", "<>.replace")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None or any(True for _ in case.source.calls(*RENAMES)):
        return
    seen: set[tuple[str, int]] = set()
    for save in saves(case.source):
        at = (save.event.file, save.event.line)
        if not save.event.loops or save.path is None or not isinstance(save.path.const, str) or at in seen:
            continue
        seen.add(at)
        yield found(
            case,
            RULE,
            "info",
            save.event,
            happens="the last good checkpoint is overwritten in place: a process killed meanwhile leaves none",
            remedy='torch.save(state, path + ".tmp"); os.replace(path + ".tmp", path)',
        )

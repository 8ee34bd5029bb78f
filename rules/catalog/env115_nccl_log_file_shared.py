"""The processes of a run write NCCL's log into one file.

## What it finds
NCCL_DEBUG_FILE without %p (the process), or without %h (the host) on several hosts; and one that begins with ~.

## Why it matters
Each process opens the file anew, so they overwrite each other and the lines of the rank that failed are lost. NCCL
does not expand ~ and makes no folders: the file is then not written at all.

## What to do
export NCCL_DEBUG_FILE=/absolute/folder/nccl.%h.%p

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug-file
"""

from collections.abc import Iterator

from advisor.rules.nccl_variables import setting
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("ENV115", "nccl-log-file-shared")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    found = setting(machine, "NCCL_DEBUG_FILE")
    if found is None or found.value.startswith("/dev/std"):
        return
    several = machine.nodes > 1
    wanted = ["%p"] if len(machine.gpus) > 1 or several else []
    wanted += ["%h"] if several else []
    missing = [mark for mark in wanted if mark not in found.value]
    if found.value.startswith("~"):
        why = "NCCL does not expand ~, so nothing is written"
    elif missing:
        why = f"without {' and '.join(missing)} all ranks write to the same file, and lines are lost"
    else:
        return
    yield Finding(
        code="ENV115",
        name="nccl-log-file-shared",
        severity="info",
        message=f"{found.words}: {why}",
        facts=found.facts | {"missing": missing},
        remedy="export NCCL_DEBUG_FILE=/absolute/folder/nccl.%h.%p",
    )

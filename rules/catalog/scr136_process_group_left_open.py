"""The process group is never destroyed.

## What it finds
`init_process_group` and no `destroy_process_group` in the script or its modules.

## Why it matters
PyTorch warns on each rank at exit, and NCCL's threads may hang while the interpreter shuts down, so that a finished
job does not end.

## What to do
`dist.destroy_process_group()` as the last line of training.

## Source
https://docs.pytorch.org/docs/stable/distributed.html, "Shutdown"
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found

RULE = ("SCR136", "process-group-left-open")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None:
        return
    started = next(case.source.calls("torch.distributed.init_process_group"), None)
    closed = any(event.name.endswith(("destroy_process_group", ".cleanup")) for event in case.source.events)
    named = any("destroy_process_group" in line for module in case.source.modules for line in module.lines)
    if started is None or closed or named:
        return
    yield found(
        case,
        RULE,
        "info",
        started,
        happens="the group is never destroyed: a warning on each rank, and NCCL may hang at exit",
        remedy="torch.distributed.destroy_process_group() at the end of training",
    )

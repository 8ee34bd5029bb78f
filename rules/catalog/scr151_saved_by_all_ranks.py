"""All ranks write the same checkpoint file.

## What it finds
`torch.save` to a path that does not depend on the rank, on all ranks of a script that trains on several.

## Why it matters
Two processes write into one file at once: some checkpoints can't be read back ("invalid header or archive is
corrupted", "storage has wrong size"), and one notices when they are needed.

## What to do
`if rank == 0: torch.save(...)`, then a barrier before other ranks read the file. The state of a sharded model is
gathered by all ranks first.

## Source
https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html, "Save and Load Checkpoints";
https://github.com/pytorch/pytorch/issues/20016
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.saves import saves

RULE = ("SCR151", "saved-by-all-ranks")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None or not case.source.many_ranks:
        return
    for save in saves(case.source):
        if save.guarded or save.per_rank or save.path is None:
            continue
        yield found(
            case,
            RULE,
            "error",
            save.event,
            happens="all ranks write the same file at once, and some checkpoints can't be read back",
            remedy="if rank == 0: torch.save(...), then dist.barrier() on all ranks before one of them reads it",
        )

"""A process may open few files.

## What it finds
`ulimit -n` below 1024, or below 4096 with more than 100 ranks.

## Why it matters
Each tensor that a loader's worker hands over is an open file, and each connection of NCCL is one: at "Too many open
files" or "received 0 items of ancdata" the run ends.

## What to do
Raise the limit for the job; 65536 is usual.

## Source
https://docs.pytorch.org/docs/stable/multiprocessing.html#file-descriptor-file-descriptor
"""

from collections.abc import Iterator

from advisor.rules.format import plural
from advisor.rules.host_ranks import ranks
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

FEW, FEW_FOR_MANY_RANKS, MANY_RANKS = 1024, 4096, 100


@rule("CPU113", "few-open-files")
def check(case: Case) -> Iterator[Finding]:
    limit, count = case.machine.host.open_files, ranks(case)
    if limit is None or not count or not 0 <= limit < (FEW_FOR_MANY_RANKS if count > MANY_RANKS else FEW):
        return
    yield Finding(
        code="CPU113",
        name="few-open-files",
        severity="info",
        message=f"ulimit -n allows a process {limit} open files; the job has {plural(count, 'rank')}",
        facts={"open_files": limit, "ranks": count},
        remedy="ulimit -n 65536",
    )

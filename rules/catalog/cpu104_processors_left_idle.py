"""OMP_NUM_THREADS=1 is exported although each rank could have several processors.

## What it finds
OMP_NUM_THREADS=1 in the environment of a host with four or more processors for each rank.

## Why it matters
torchrun sets it for several ranks if nothing else does, and many job templates copied it. One thread is enough to drive
a GPU, and loader workers use one each, but an optimizer in host memory, CPU ranks and preprocessing in the training
process run at the speed of one core.

## What to do
Unset it: `advisor apply` then gives each rank its share of the processors.

## Source
https://docs.pytorch.org/docs/stable/elastic/run.html; https://github.com/pytorch/pytorch/pull/22501
"""

from collections.abc import Iterator

from advisor.rules.host_ranks import ranks_per_host, works_on_processors
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

WORTH_IT = 4  # processors per rank


@rule("CPU104", "processors-left-idle")
def check(case: Case) -> Iterator[Finding]:
    cpus, ranks = case.machine.host.cpus, ranks_per_host(case)
    if case.machine.environment.get("OMP_NUM_THREADS") != "1" or not cpus or not ranks or cpus // ranks < WORTH_IT:
        return
    share = cpus // ranks
    yield Finding(
        code="CPU104",
        name="processors-left-idle",
        severity="warning" if works_on_processors(case) else "info",
        message=f"OMP_NUM_THREADS=1 gives each of {ranks} ranks one thread; {cpus} processors / {ranks} = {share}",
        facts={"processors": cpus, "ranks": ranks, "share": share},
        remedy=f"unset OMP_NUM_THREADS, or export OMP_NUM_THREADS={share}",
    )

"""OMP_NUM_THREADS gives the ranks of a host more threads than there are processors.

## What it finds
OMP_NUM_THREADS times the ranks of one host above the processors that this job may use.

## Why it matters
The threads of all ranks compete: each parallel region waits for its slowest thread, and the loader's workers find no
free processor. It costs most where processors compute: CPU ranks, and the optimizer under CPU offload.

## What to do
Leave OMP_NUM_THREADS unset under `advisor apply`, which gives each rank its share, or set the share yourself.

## Source
https://docs.pytorch.org/docs/stable/notes/multiprocessing.html#avoid-cpu-oversubscription
"""

from collections.abc import Iterator

from advisor.rules.host_ranks import ranks_per_host, works_on_processors
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("CPU103", "threads-exceed-processors")
def check(case: Case) -> Iterator[Finding]:
    value = case.machine.environment.get("OMP_NUM_THREADS", "")
    cpus, ranks = case.machine.host.cpus, ranks_per_host(case)
    if not value.isdecimal() or not cpus or int(value) * ranks <= cpus or int(value) == 1:
        return
    share = max(1, cpus // ranks)
    yield Finding(
        code="CPU103",
        name="threads-exceed-processors",
        severity="warning" if works_on_processors(case) else "info",
        message=f"OMP_NUM_THREADS={value} x {ranks} ranks = {int(value) * ranks} threads on {cpus} processors",
        facts={"threads": int(value) * ranks, "processors": cpus, "ranks": ranks},
        remedy=f"unset OMP_NUM_THREADS, or export OMP_NUM_THREADS={share}",
    )

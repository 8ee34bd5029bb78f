"""Each rank starts so many loader workers that the host has no processors for them.

## What it finds
`num_workers` above 16, or the host's whole count of processors, in a script that runs once per GPU.

## Why it matters
The number is per rank: 32 on each of 8 GPUs are 256 processes. They take each other's processors, memory and file
handles, and loading gets slow or freezes. In a container, the count of processors is the host's, not what may be used.

## What to do
Usable processors divided by the ranks of the host, `len(os.sched_getaffinity(0)) // local_world_size`, and rarely
more than 8.

## Source
torch.utils.data.DataLoader, "This DataLoader will create ... worker processes"; rule CPU105
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found

RULE = ("SCR105", "many-loader-workers")
MOST = 16  # of one rank
COUNTS = ("os.cpu_count", "multiprocessing.cpu_count", "torch.multiprocessing.cpu_count", "psutil.cpu_count")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None or not case.source.many_ranks:
        return
    seen: set[tuple[str, int]] = set()
    for event in case.source.events:
        made = event.kind == "call" and event.value.role == "loader" and event.value.node is event.node
        workers = event.argument("num_workers", 5) if made else None
        if workers is None or event.alone or (event.file, event.line) in seen:
            continue
        every = workers.name in COUNTS
        if not every and not (isinstance(workers.const, int) and workers.const > MOST):
            continue
        seen.add((event.file, event.line))
        number = "as many workers as the host has processors" if every else f"{workers.const} workers"
        yield found(
            case,
            RULE,
            "warning",
            event,
            happens=f"each rank starts {number}"
            + ("" if every else f": on 8 GPUs {8 * workers.const} processes")
            + "; they take the processors from each other, and loading gets slow or freezes",
            remedy="num_workers=min(8, len(os.sched_getaffinity(0)) // ranks of this host)",
            workers=None if every else workers.const,
        )

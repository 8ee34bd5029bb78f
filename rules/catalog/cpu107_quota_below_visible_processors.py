"""The container may use less processor time than the processors that it sees.

## What it finds
A CPU quota of the control group (docker --cpus, a Kubernetes limit) below three quarters of the visible processors.

## Why it matters
`os.cpu_count()` and libraries that size their pools by it see all processors. Their threads use the quota up early in
each period of 100 ms, and the kernel then stops all of them, the one that launches kernels too, until the next.

## What to do
Size threads and loader workers by the quota, or give the container whole processors (docker --cpuset-cpus).

## Source
https://docs.kernel.org/scheduler/sched-bwc.html
"""

from collections.abc import Iterator

from advisor.rules.host_ranks import ranks_per_host
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

SHARE = 0.75


@rule("CPU107", "quota-below-visible-processors")
def check(case: Case) -> Iterator[Finding]:
    host, ranks = case.machine.host, ranks_per_host(case)
    visible = sum(len(node.cpus or ()) for node in case.machine.numa_nodes) or host.cores
    if host.cpu_quota is None or not visible or not ranks or host.cpu_quota >= SHARE * visible:
        return
    share = max(1, int(host.cpu_quota) // ranks)
    yield Finding(
        code="CPU107",
        name="quota-below-visible-processors",
        severity="info",
        message=f"{visible} processors are visible, the quota is {host.cpu_quota:.3g}: {share} for each rank",
        facts={"visible": visible, "quota": host.cpu_quota, "share": share},
        remedy=f"export OMP_NUM_THREADS={share}; DataLoader(..., num_workers={max(0, share - 1)}); or raise the quota",
    )

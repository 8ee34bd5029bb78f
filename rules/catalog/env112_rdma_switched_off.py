"""NCCL_IB_DISABLE is set although the host has an RDMA adapter.

## What it finds
NCCL_IB_DISABLE=1 on a host with an InfiniBand or RoCE port that is active, or whose state is not known. A warning
where several hosts train together, else a note.

## Why it matters
NCCL then uses TCP: no RDMA, and no GPUDirect, so each byte goes through host memory and the kernel. One thread moves
about 3 GB/s, of an adapter that does 12 to 50. A job left with this setting by its template took 5.7 instead of 2.5 s
a step.

## What to do
Unset it. If NCCL then fails, it says why at NCCL_DEBUG=WARN: memlock (ulimit -l), the GID index, or a fabric that is
down.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-disable;
https://github.com/scottclowe/pytorch-experiment-template/issues/11; rules/transport.py for TCP
"""

from collections.abc import Iterator

from advisor.rules.format import bandwidth, ids
from advisor.rules.nccl_variables import number_of, setting
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.transport import TCP_THREAD


@rule("ENV112", "rdma-switched-off")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    found = setting(machine, "NCCL_IB_DISABLE")
    if found is None or not number_of(machine, "NCCL_IB_DISABLE"):
        return
    ports = [nic for nic in machine.nics if nic.kind in ("infiniband", "roce") and nic.state != "down"]
    rate = sum(nic.bandwidth or 0 for nic in ports)
    several = machine.nodes > 1 or (case.plan is not None and case.plan.nodes > 1)
    if ports:
        names = ids([nic.name or nic.id for nic in ports]) + (f" with {bandwidth(rate)}" if rate else "")
        why = f"RDMA over {names} is left out; TCP moves {bandwidth(TCP_THREAD)} a thread"
        why += "; a job on RoCE took 5.7 instead of 2.5 s a step by it" if several else ""
    else:
        why = "no RDMA port is known here, so it changes nothing as far as can be seen"
    yield Finding(
        code="ENV112",
        name="rdma-switched-off",
        severity="warning" if ports and several else "info",
        message=f"{found.words}: {why}",
        facts=found.facts | {"ports": [nic.name or nic.id for nic in ports], "bandwidth": rate},
        remedy=f"{found.undo}, and read at NCCL_DEBUG=WARN what fails, if it does",
    )

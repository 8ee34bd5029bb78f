"""An RDMA port loses its link again and again.

## What it finds
Port errors or completions with error 12 in NCCL's log, or a port whose counter of lost links is 10 and more.

## Why it matters
A link that goes down for seconds ends a job on any number of hosts, at random, after hours. A longer NCCL_IB_TIMEOUT
only makes the wait longer.

## What to do
Check the cable, transceiver and switch port of that device on that host; compare /sys/class/infiniband/DEVICE/ports/1/
counters/link_downed and symbol_error before and after an hour of traffic.

## Source
https://github.com/NVIDIA/nccl/issues/905
"""

from collections.abc import Iterator

from advisor.rules.format import ids
from advisor.rules.network import log_warnings, rdma_nics
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

OFTEN = 10  # lost links; a few are reboots of the switch


@rule("NET116", "rdma-port-unstable")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    said = [m[0] for m in log_warnings(machine, r"async event : port error|completion with error 12")]
    counts = {nic.name or nic.id: nic.link_downed or 0 for nic in rdma_nics(machine)}
    worst = {name: number for name, number in counts.items() if number >= OFTEN}
    if not said and not worst:
        return
    hosts = machine.nccl_log.hosts if machine.nccl_log and said else ()
    parts = [f"NCCL's log of {', '.join(hosts) or 'this run'} has '{said[0]}'"] if said else []
    parts += [f"{name} has lost its link {number} times" for name, number in worst.items()]
    yield Finding(
        code="NET116",
        name="rdma-port-unstable",
        severity="warning" if said else "info",
        message=f"{'; '.join(parts)}: an RDMA port is unstable",
        facts={"link_downed": worst, "hosts": list(hosts)},
        remedy=(
            f"check the cable, transceiver and switch port of {ids(list(worst)) or 'the port that ibstat names'}; "
            "a longer NCCL_IB_TIMEOUT does not mend it"
        ),
    )

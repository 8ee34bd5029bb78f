"""MASTER_ADDR is an address where the ranks can't meet.

## What it finds
A loopback address in MASTER_ADDR for a plan on several hosts; for one host, an IP address that none of its interfaces
has. MASTER_PORT that is no port.

## Why it matters
All ranks meet at MASTER_ADDR. With 127.0.0.1 each host waits for itself; with the address of an earlier allocation the
ranks wait until the time limit of the process group.

## What to do
Several hosts: the first host's address that the others can reach. One host: unset both; `advisor apply` and torchrun
--standalone choose a free port themselves.

## Source
https://docs.pytorch.org/docs/stable/elastic/run.html
"""

import re
from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

_LOOPBACK = re.compile(r"localhost|127\..*|::1|0\.0\.0\.0")
_IPV4 = re.compile(r"\d+\.\d+\.\d+\.\d+")


@rule("ENV134", "master-address-unreachable")
def check(case: Case) -> Iterator[Finding]:
    address = case.machine.environment.get("MASTER_ADDR", "")
    port = case.machine.environment.get("MASTER_PORT", "")
    nodes = case.machine.nodes if case.plan is None else case.plan.nodes
    own = {net.split("/")[0] for interface in case.machine.interfaces for net in interface.addresses}
    if nodes > 1 and _LOOPBACK.fullmatch(address):
        yield Finding(
            code="ENV134",
            name="master-address-unreachable",
            severity="warning",
            message=f"MASTER_ADDR={address} is each of {nodes} hosts itself: the ranks never meet",
            facts={"address": address, "nodes": nodes},
            remedy="export MASTER_ADDR to the first host's address, on all hosts",
        )
    elif nodes == 1 and own and _IPV4.fullmatch(address) and not _LOOPBACK.fullmatch(address) and address not in own:
        yield Finding(
            code="ENV134",
            name="master-address-unreachable",
            severity="info",
            message=f"MASTER_ADDR={address} is no address of this host, and the plan is for one host",
            facts={"address": address, "nodes": nodes},
            remedy="unset MASTER_ADDR MASTER_PORT",
        )
    if port and not (port.isdecimal() and 1 <= int(port) <= 65535):
        yield Finding(
            code="ENV134",
            name="master-address-unreachable",
            severity="warning",
            message=f"MASTER_PORT={port} is no port between 1 and 65535",
            facts={"port": port},
            remedy="unset MASTER_PORT",
        )

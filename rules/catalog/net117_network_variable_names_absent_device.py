"""A network variable names a device that this host does not have.

## What it finds
NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME that matches no interface, FI_PROVIDER=efa without an EFA adapter: mostly a
launch script of another cluster. (NCCL_IB_HCA is ENV113.)

## Why it matters
NCCL stops with "no socket interface found", or quietly takes TCP where RDMA was meant: a 70B run on 32 H200 made 200
words/s with the variables of another cloud.

## What to do
Unset the variable: NCCL chooses well where nothing is set. If hosts name their interfaces differently, give a list of
prefixes: NCCL_SOCKET_IFNAME=eno1,eth0.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname;
https://github.com/pytorch/torchtitan/issues/676
"""

from collections.abc import Iterator

from advisor.rules.machine import Machine
from advisor.rules.network import chosen, said_sockets
from advisor.rules.plan import Finding, Severity
from advisor.rules.rule import Case, rule

INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@rule("NET117", "network-variable-names-absent-device")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    if len(machine.gpus) * machine.nodes < 2:
        return
    for name, severity, there in _absent(machine):
        value = machine.environment[name]
        yield Finding(
            code="NET117",
            name="network-variable-names-absent-device",
            severity=severity,
            message=(
                f"{name}={value} names nothing that this host has"
                + (f": there is {', '.join(there)}" if there else ", and NCCL's log says network Socket")
            ),
            facts={"variable": name, "value": value, "there": there},
            remedy=f"unset {name}; then measure all_reduce_perf between two hosts before tuning anything else"
            if machine.nodes > 1
            else f"unset {name}",
        )


def _absent(machine: Machine) -> Iterator[tuple[str, Severity, list[str]]]:
    """Yield the variables that match nothing, how bad that is, and what they could have named."""
    interfaces = tuple(interface.name for interface in machine.interfaces)
    for name in INTERFACES:
        value = machine.environment.get(name)
        if value and interfaces and not chosen(f"={value}" if name.startswith("GLOO") else value, interfaces):
            yield name, "error", list(interfaces)
    efa = any(nic.kind == "efa" for nic in machine.nics)
    if machine.nodes > 1 and machine.environment.get("FI_PROVIDER") == "efa" and not efa:
        if said_sockets(machine):
            yield "FI_PROVIDER", "warning", []
        elif machine.nics and all(nic.kind is not None for nic in machine.nics):
            yield "FI_PROVIDER", "warning", [nic.name or nic.id for nic in machine.nics]

"""NCCL_SOCKET_IFNAME makes NCCL take an interface that leads to no other host.

## What it finds
A machine of several hosts with NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME set to loopback or a container's bridge, or to
an exclusion such as ^docker0 that forgets lo.

## Why it matters
Setting the variable switches NCCL's own filter off, and loopback comes first in the list of interfaces. Each host then
tells the others to call 127.0.0.1: they reach themselves, and the start hangs or fails with "connection refused".

## What to do
Unset it; with one real interface nothing needs to be set. Else name it, or exclude both: ^docker0,lo. The names may
differ between hosts: a list of prefixes such as eno1,eth0 serves all.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname;
https://github.com/NVIDIA/nccl/issues/286
"""

from collections.abc import Iterator

from advisor.rules.machine import Machine
from advisor.rules.network import between_hosts, chosen, is_local
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
LOOPBACK = "lo"  # each Linux host has it, and lists it first


@rule("NET118", "socket-interface-leads-nowhere")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    if machine.nodes == 1:
        return
    for name in VARIABLES:
        value = machine.environment.get(name, "")
        taken = _taken(machine, value)
        if not value or taken is None:
            continue
        real = [interface.name for interface in between_hosts(machine)]
        yield Finding(
            code="NET118",
            name="socket-interface-leads-nowhere",
            severity="error",
            message=(
                f"{name}={value} makes {machine.nodes} hosts use {taken}, on which each reaches only itself"
                f"{f'; {real[0]} leads to the others' if len(real) == 1 else ''}"
            ),
            facts={"variable": name, "value": value, "taken": taken},
            remedy=f"unset {name}"
            + (f", or export {name}={','.join(real) if real else '^docker0,lo'}" if name.startswith("NCCL") else ""),
        )


def _taken(machine: Machine, value: str) -> str | None:
    """Name the local interface that comes first for this value; None where another does, or may."""
    if machine.nccl_log is not None and machine.nccl_log.interface is not None:
        used = machine.nccl_log.interface
        return used if is_local(machine, used) else None
    known = tuple(interface.name for interface in machine.interfaces if interface.up is not False)
    if value.startswith("^"):
        return LOOPBACK if chosen(value, (LOOPBACK,)) else None
    named = chosen(value, known) if known else tuple(value.removeprefix("=").split(","))
    return named[0] if named and all(is_local(machine, name) for name in named) else None

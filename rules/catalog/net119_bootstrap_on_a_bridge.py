"""A bridge or a VPN is up beside the interface that joins the hosts.

## What it finds
A machine of several hosts with a container's bridge, a virtual machine's bridge or a VPN up; and whether a run has
already taken it: by the bootstrap's interface in NCCL's log, or by a failed connection to its address, which NCCL,
torch or Gloo report ("connect() to 172.17.0.1 failed: Connection refused", "The client socket has timed out").

## Why it matters
Every host has the same docker0 address, 172.17.0.1, so that peers that are told it call themselves: "connection
refused", or a hang at the start. NCCL leaves docker* out by itself, but not bridges of other names and VPNs; Gloo
takes what the host's name resolves to.

## What to do
After such a failure the plan excludes these interfaces with NCCL_SOCKET_IFNAME=^docker0,lo and names the one that is
left, or has the default route, for Gloo. Before one, nothing is set. `ip route get MASTER_ADDR` says which interface
leads there.

## Source
https://github.com/horovod/horovod/issues/310; NCCL's src/misc/socket.cc
"""

from collections.abc import Iterator

from advisor.rules.machine import Interface, Machine
from advisor.rules.network import between_hosts, failed_addresses, is_local, is_tunnel, unset
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

LOOPBACK = "lo"
# unless Docker was told otherwise; inside a container the same network is that of its own interface
DOCKER_BRIDGE, DOCKER_NETWORK, DOCKER_GATEWAY = "docker0", "172.17.", "172.17.0.1"


@rule("NET119", "bootstrap-on-a-bridge")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    traps = [i for i in machine.interfaces if _is_trap(machine, i)]
    used = _used(machine, traps)
    real = between_hosts(machine)
    if machine.nodes == 1 or "NCCL_SOCKET_IFNAME" in machine.environment or not (used or (traps and real)):
        return
    names = list(dict.fromkeys([*([used] if used else []), *(trap.name for trap in traps), LOOPBACK]))
    settings = {"NCCL_SOCKET_IFNAME": f"^{','.join(names)}"}
    settings |= {"GLOO_SOCKET_IFNAME": real[0].name} if len(real) == 1 else {}
    env = unset(machine, settings) if used else {}
    listed = ", ".join(f"{trap.name} ({trap.addresses[0]})" for trap in traps) or (used or "")
    route = f"; {real[0].name} ({real[0].addresses[0]}) leads to the other hosts" if len(real) == 1 else ""
    yield Finding(
        code="NET119",
        name="bootstrap-on-a-bridge",
        severity="warning" if used else "info",
        message=(
            f"a run used {used}, which leads to no other of {machine.nodes} hosts{route}"
            if used
            else f"{listed} {'is' if len(traps) == 1 else 'are'} up and no route between {machine.nodes} hosts{route}"
        ),
        facts={"interfaces": names, "used": used} | ({"env": env} if env else {}),
        remedy="ip route get MASTER_ADDR names the interface that leads there"
        + ("" if used else f"; if the start hangs, export NCCL_SOCKET_IFNAME={settings['NCCL_SOCKET_IFNAME']}"),
    )


def _is_trap(machine: Machine, interface: Interface) -> bool:
    if interface.up is False or not interface.addresses or interface.default_route:
        return False
    if interface.kind == "loopback" or interface.name == LOOPBACK:
        return False
    return is_local(machine, interface.name) or is_tunnel(machine, interface.name)


def _hosts(interface: Interface) -> list[str]:
    return [address.partition("/")[0] for address in interface.addresses]


def _used(machine: Machine, traps: list[Interface]) -> str | None:
    """Name the interface that a failed run used: by the bootstrap's line, or by an address that failed."""
    log, failed = machine.nccl_log, failed_addresses(machine)
    interface = log.interface if log else None
    if interface is not None and (is_local(machine, interface) or interface in [trap.name for trap in traps]):
        return interface
    known = [host for found in machine.interfaces for host in _hosts(found)]
    if DOCKER_GATEWAY in failed and not any(host.startswith(DOCKER_NETWORK) for host in known):
        return DOCKER_BRIDGE
    return next((trap.name for trap in traps if set(failed) & set(_hosts(trap))), None)

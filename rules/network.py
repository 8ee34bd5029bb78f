"""What joins hosts: RDMA devices, sockets, and which interfaces NCCL would take for them."""

import re
from collections.abc import Iterator

from advisor.rules.machine import Interface, LinkKind, Machine, Nic

RDMA = ("infiniband", "roce", "efa")
SOCKET = "Socket"  # NCCL's own word for TCP
TOPOLOGY_FILE = "/var/run/nvidia-topologyd/virtualTopology.xml"  # NCCL reads it where NCCL_TOPO_FILE is not set
DIRECT_PCIE: tuple[LinkKind, ...] = ("pcie-switch", "pcie-switches")

# Interfaces that lead to no other host: loopback, bridges of containers and virtual machines. A VPN may or may not.
_LOCAL = re.compile(r"lo\d*|(docker|br-|virbr|veth|cni|lxc|lxd|podman|cali|dummy|vnet)\S*")
_ADDRESS = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_TUNNEL = re.compile(r"(tun|tap|wg|ppp|tailscale|zt|utun)\S*")


def rdma_nics(machine: Machine) -> tuple[Nic, ...]:
    return tuple(nic for nic in machine.nics if nic.kind in RDMA)


def only_ethernet(machine: Machine) -> bool:
    """Say whether network cards are known and none can do RDMA."""
    return bool(machine.nics) and all(nic.kind == "ethernet" for nic in machine.nics)


def said_sockets(machine: Machine) -> bool:
    """Say whether NCCL itself printed that it uses TCP between hosts."""
    return machine.nccl_log is not None and machine.nccl_log.network == SOCKET


def is_local(machine: Machine, name: str) -> bool:
    """Say whether an interface leads to no other host, by its kind or else its name."""
    kind = next((found.kind for found in machine.interfaces if found.name == name), None)
    return kind in ("loopback", "bridge", "virtual") or (kind is None and _LOCAL.fullmatch(name) is not None)


def is_tunnel(machine: Machine, name: str) -> bool:
    kind = next((found.kind for found in machine.interfaces if found.name == name), None)
    return kind == "tunnel" or (kind is None and _TUNNEL.fullmatch(name) is not None)


def between_hosts(machine: Machine) -> tuple[Interface, ...]:
    """List the interfaces that can carry traffic to other hosts; those of the default route alone, if one has it."""
    found = [
        interface
        for interface in machine.interfaces
        if interface.up is not False
        and interface.addresses
        and not is_local(machine, interface.name)
        and not is_tunnel(machine, interface.name)
    ]
    return tuple([i for i in found if i.default_route] or found)


def chosen(value: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that a value such as `eth,ib0`, `=eth0` or `^docker0,lo` chooses.

    As NCCL reads NCCL_SOCKET_IFNAME and NCCL_IB_HCA: prefixes, whole names after `=`, all others after `^`.
    """
    out = value.startswith("^")
    rest = value.removeprefix("^")
    exact = rest.startswith("=")
    wanted = [part.partition(":")[0] for part in rest.removeprefix("=").split(",") if part]

    def named(name: str) -> bool:
        return any(name == part if exact else name.startswith(part) for part in wanted)

    return tuple(name for name in names if named(name) != out)


def log_warnings(machine: Machine, pattern: str) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern in the WARN lines of NCCL's log."""
    for text in machine.nccl_log.warnings if machine.nccl_log else ():
        match = re.search(pattern, text, re.IGNORECASE)
        if match:
            yield match


def failed_addresses(machine: Machine) -> tuple[str, ...]:
    """List the IPv4 addresses that ranks could not connect to, by NCCL's warnings and by torch's and Gloo's errors."""
    warnings = machine.nccl_log.warnings if machine.nccl_log else ()
    lines = [*(text for text in warnings if "onnect" in text), *machine.failed_connections]
    return tuple(dict.fromkeys(address for line in lines for address in _ADDRESS.findall(line)))


def unset(machine: Machine, env: dict[str, str]) -> dict[str, str]:
    """Return the settings of which the environment holds none; what the user set stays as it is."""
    return {name: value for name, value in env.items() if name not in machine.environment}

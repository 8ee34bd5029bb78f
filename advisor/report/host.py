"""Host and software as text, in a few lines."""

from collections.abc import Sequence

from rich.console import RenderableType

from advisor.report.layout import labelled, listed, section
from advisor.rules.format import binary, memory, plural
from advisor.rules.machine import Host, Interface, Machine, NcclLog, Price, Software


def host_section(machine: Machine) -> RenderableType | None:
    """Describe the host in a few lines; None when nothing is known of it."""
    rows: list[tuple[str, Sequence[str | None]]] = [
        ("host", _host(machine.host)),
        ("memory", _host_memory(machine.host)),
        ("network", [_interface(interface) for interface in machine.interfaces]),
        ("software", _software(machine.software)),
        ("NCCL log", _nccl_log(machine.nccl_log)),
        ("price", _price(machine.price)),
        ("variables", [f"{name}={value}" for name, value in sorted(machine.environment.items())]),
    ]
    known = [(label, listed(parts)) for label, found in rows if (parts := [part for part in found if part])]
    return section("Host" if machine.nodes == 1 else "Each host", labelled(known)) if known else None


def _host(host: Host) -> list[str | None]:
    return [
        host.cpu,
        plural(host.sockets, "socket") if host.sockets else None,
        plural(host.cores, "core") if host.cores else None,
        plural(host.cpus, "usable CPU") if host.cpus else None,
        plural(host.numa_nodes, "NUMA node") if host.numa_nodes else None,
        "virtual machine" if host.virtual else None,
        f"NCCL topology file {host.topology_file}" if host.topology_file else None,
        "container" if host.container else None,
        f"{host.cpu_quota:g} processors' time" if host.cpu_quota is not None else None,
        f"IOMMU {host.iommu}" if host.iommu in ("translating", "passthrough") else None,
        host.os,
    ]


def host_in_short(host: Host) -> str:
    """Name what a host without a GPU can train with."""
    parts = [
        plural(host.cpus, "CPU") if host.cpus else None,
        f"{memory(host.memory)} memory" if host.memory else None,
    ]
    known = ", ".join(part for part in parts if part)
    return f"{known}; training runs on the CPUs with gloo" if known else "nothing is known of the host either"


def _host_memory(host: Host) -> list[str | None]:
    free = f" ({memory(host.memory_available)} available)" if host.memory_available is not None else ""
    locked = None if host.memlock is None else "unlimited" if host.memlock < 0 else binary(host.memlock)
    return [
        f"{memory(host.memory)}{free}" if host.memory is not None else None,
        f"/dev/shm {binary(host.shm)}{_shm_free(host)}" if host.shm is not None else None,
        f"locked memory {locked}" if locked else None,
    ]


def _shm_free(host: Host) -> str:
    """Name what is free of /dev/shm where that is not nearly all."""
    if host.shm is None or host.shm_free is None or host.shm_free > 0.9 * host.shm:
        return ""
    return f" ({binary(host.shm_free)} free)"


def _interface(interface: Interface) -> str | None:
    """Name an interface that leads out of the host, or could be taken for one that does: with its first address."""
    if not interface.addresses or interface.up is False or interface.kind == "loopback":
        return None
    route = " (default route)" if interface.default_route else ""
    return f"{interface.name} {interface.addresses[0]}{route}"


def _nccl_log(log: NcclLog | None) -> list[str | None]:
    if log is None:
        return []
    return [
        log.version,
        f"network {log.network}" if log.network else None,
        f"bootstrap over {log.interface}" if log.interface else None,
        *(f"{count}x {way}" for way, count in log.transports.items()),
        plural(len(log.warnings), "warning") if log.warnings else None,
    ]


def _price(price: Price | None) -> list[str | None]:
    if price is None:
        return []
    return [f"${price.dollars_per_hour:,.2f} an hour on demand", price.region, f"list of {price.date}"]


def _software(software: Software) -> list[str | None]:
    built = f" (CUDA {software.torch_cuda})" if software.torch_cuda else ""
    newest = f" (CUDA up to {software.cuda_driver})" if software.cuda_driver else ""
    return [
        f"Python {software.python}" if software.python else None,
        f"torch {software.torch}{built}" if software.torch else None,
        f"NCCL {software.nccl}" if software.nccl else None,
        f"driver {software.driver}{newest}" if software.driver else None,
    ]

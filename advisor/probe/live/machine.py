"""Describe this machine: ask each source in turn, then settle what stays unknown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from msgspec import structs

from advisor.probe.live.environment import read_environment, read_hidden
from advisor.probe.live.gpu_state import with_state
from advisor.probe.live.gpus import read_driver, read_gpus
from advisor.probe.live.host import read_host
from advisor.probe.live.interfaces import read_interfaces
from advisor.probe.live.nics import read_nics
from advisor.probe.live.no_gpu import why_no_gpu
from advisor.probe.live.numa_nodes import read_numa_nodes
from advisor.probe.live.nvidia_smi import read_matrix
from advisor.probe.live.nvml import query
from advisor.probe.live.pci_facts import read_acs, read_iommu
from advisor.probe.live.pci_tree import Kind, read_pci_tree
from advisor.probe.live.pcie_paths import read_pcie_paths
from advisor.probe.live.peer_access import read_peer_access
from advisor.probe.live.segments import read_segments
from advisor.probe.live.services import read_services
from advisor.probe.live.settle import settle
from advisor.probe.live.software import read_software
from advisor.probe.live.sysfs import ROOT
from advisor.probe.live.topology_file import read_topology_file
from advisor.probe.live.visible import with_withheld
from advisor.rules.derived_links import with_derived_links
from advisor.rules.links import with_link_bandwidths
from advisor.rules.machine import Gpu, Machine, Unknown, Value
from advisor.rules.visible_devices import only_visible

V = TypeVar("V", bound=Value)
Source = Callable[[Machine, Path], Machine]  # adds facts, or says in `unknown` why it could not


def probe_live(root: Path = ROOT) -> Machine:
    """Describe the host that this process runs on, with the GPUs that it may use.

    root: the folder above /proc, /sys and /dev.
    """
    machine = Machine()
    for add in SOURCES:
        machine = add(machine, root)
    machine = only_visible(with_withheld(machine, root))
    return with_link_bandwidths(settle(with_derived_links(machine)))


def add_gpus(machine: Machine, root: Path) -> Machine:
    """Add the GPUs that NVML lists; without any, say what is missing and what to do."""
    gpus, unknown = read_gpus()
    if not gpus:
        reason = "; ".join(gap.why for gap in unknown) or "the driver sees none"
        return _with(machine, (Unknown(what="gpus", why=why_no_gpu(reason, root)),))
    states = [with_state(gpu) for gpu in gpus]
    unknown += tuple(gap for _, gaps in states for gap in gaps)
    return _with(machine, unknown, gpus=tuple(gpu for gpu, _ in states), peer_access=read_peer_access(gpus))


def add_matrix(machine: Machine, _root: Path) -> Machine:
    """Add the links and network cards of `nvidia-smi topo -m`, and what it tells of the GPUs that NVML does not."""
    matrix, why = read_matrix()
    if matrix is None:
        return _with(machine, (Unknown(what="links", why=why),)) if machine.gpus else machine
    told = {gpu.id: gpu for gpu in matrix.gpus}
    gpus = tuple(_filled(gpu, told.get(gpu.id, gpu)) for gpu in machine.gpus) or matrix.gpus
    here = {gpu.id for gpu in gpus} | {nic.id for nic in matrix.nics}
    links = tuple(link for link in matrix.links if {link.a, link.b} <= here)
    gaps = () if machine.gpus else _without_nvml(matrix.gpus)
    return _with(machine, matrix.unknown + gaps, gpus=gpus, nics=matrix.nics, links=links)


def add_host(machine: Machine, root: Path) -> Machine:
    host, unknown = read_host(root)
    return _with(machine, unknown, host=host)


def add_nics(machine: Machine, root: Path) -> Machine:
    """Add what the kernel knows of the network cards, under the ids of the matrix, and the cards that it leaves out."""
    ids = {nic.name or nic.id: nic.id for nic in machine.nics}
    nics, unknown = read_nics(root, ids)
    found = {nic.id: nic for nic in nics}
    why = "the link matrix names it, /sys/class/infiniband does not"
    lost = [nic.id for nic in machine.nics if nic.id not in found]
    unknown += tuple(Unknown(what=f"{nic}.{f}", why=why) for nic in lost for f in ("kind", "bandwidth", "numa"))
    listed = tuple(_filled(nic, found.pop(nic.id, nic)) for nic in machine.nics)
    return _with(machine, unknown, nics=(*listed, *found.values()))


def add_numa_nodes(machine: Machine, root: Path) -> Machine:
    return _with(machine, numa_nodes=read_numa_nodes(root))


def add_pci_tree(machine: Machine, root: Path) -> Machine:
    """Add the PCI tree above the GPUs and network cards, and the NUMA node of a GPU's slot where NVML hides it."""
    known: dict[str, Kind] = {nic.bus_id: "nic" for nic in machine.nics if nic.bus_id}
    known |= {gpu.bus_id: "gpu" for gpu in machine.gpus if gpu.bus_id}
    tree = read_pci_tree(known, root)
    numa = {node.id: node.numa for node in tree}
    gpus = (_filled(gpu, Gpu(id=gpu.id, index=gpu.index, numa=numa.get(gpu.bus_id or ""))) for gpu in machine.gpus)
    return _with(machine, pci=tree, gpus=tuple(gpus))


def add_pcie_paths(machine: Machine, _root: Path) -> Machine:
    """Add the PCIe paths between GPUs from NVML where there is no matrix."""
    if machine.links or not machine.gpus:
        return machine
    links, unknown = read_pcie_paths(machine.gpus)
    tree = {node.id for node in machine.pci}
    if any(nic.bus_id not in tree for nic in machine.nics):
        why = "neither NVML nor /sys/bus/pci tells them all; `nvidia-smi topo -m` does"
        unknown += (Unknown(what="links to network cards", why=why),)
    return _with(machine, unknown, links=links)


def add_software(machine: Machine, root: Path) -> Machine:
    software, unknown = read_software(root=root)
    driver, driver_unknown = read_driver(root)
    return _with(machine, unknown + driver_unknown, software=_filled(software, driver))


def add_interfaces(machine: Machine, root: Path) -> Machine:
    return _with(machine, interfaces=read_interfaces(root))


def add_pci_facts(machine: Machine, root: Path) -> Machine:
    """Add what the IOMMU and ACS make of traffic between GPUs; ACS only where it matters: two GPUs, no hypervisor."""
    gpus = [gpu.bus_id for gpu in machine.gpus if gpu.bus_id]
    acs, why = read_acs(gpus, root) if len(gpus) > 1 and not machine.host.virtual else (None, None)
    iommu = read_iommu(gpus, machine.host.kernel_command_line, root)
    gaps = (Unknown(what="host.acs", why=why),) if why else ()
    return _with(machine, gaps, host=structs.replace(machine.host, acs=acs, iommu=iommu))


def add_topology_file(machine: Machine, root: Path) -> Machine:
    """Add the file that tells NCCL what the hypervisor hides."""
    gpus = [gpu.bus_id for gpu in machine.gpus if gpu.bus_id]
    file = read_topology_file(gpus, root) if machine.host.virtual else None
    return _with(machine, host=structs.replace(machine.host, topology_file=file))


def add_services(machine: Machine, root: Path) -> Machine:
    manager, mps = read_services(machine, root)
    return _with(machine, software=structs.replace(machine.software, fabric_manager=manager, mps=mps))


def add_segments(machine: Machine, root: Path) -> Machine:
    return _with(machine, shared_segments=read_segments(root))


def add_environment(machine: Machine, root: Path) -> Machine:
    values, files = read_environment(root=root)
    hidden = read_hidden(values, root=root)
    return _with(machine, environment=values, environment_files=files, environment_hidden=hidden)


SOURCES: tuple[Source, ...] = (
    add_gpus,
    add_matrix,
    add_host,
    add_numa_nodes,
    add_nics,
    add_pci_tree,
    add_pcie_paths,
    add_pci_facts,
    add_topology_file,
    add_interfaces,
    add_software,
    add_services,
    add_segments,
    add_environment,
)


def _with(machine: Machine, unknown: tuple[Unknown, ...] = (), **facts: Any) -> Machine:
    return structs.replace(machine, unknown=machine.unknown + unknown, **facts)


def _filled(value: V, other: V) -> V:
    """Take from `other` what `value` lacks."""
    gaps = {name: new for name, new in structs.asdict(other).items() if getattr(value, name) is None}
    return structs.replace(value, **gaps)


def _without_nvml(gpus: tuple[Gpu, ...]) -> tuple[Unknown, ...]:
    """Say why GPUs of which only the matrix tells have no name and no memory: for the reason that NVML gives."""
    why = query("nvmlDeviceGetCount").why or "the driver does not list it"
    fields = ("name", "memory", "memory_used", "compute_capability", "pcie", "uuid", "bus_id")
    return tuple(Unknown(what=f"{gpu.id}.{field}", why=why) for gpu in gpus for field in fields)

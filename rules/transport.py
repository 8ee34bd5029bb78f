"""What one hop between two GPUs, or two hosts, really moves: NCCL's choice of path, and how much of the link it gets.

NCCL talks over NVLink where there is one; over PCIe directly only below a common host bridge; else through host memory
(src/graph/paths.cc:355-411 of 2.30.7). The NCCL_*_DISABLE variables found in the environment are respected.
"""

from collections.abc import Collection, Mapping, Sequence
from math import inf

from advisor.rules.hardware import gpu_model
from advisor.rules.links import attachment, generation_under_load, nvlink_rate
from advisor.rules.machine import Gpu, Link, LinkKind, Machine
from advisor.rules.nccl import PCIE_SHARE, nvlink_speed
from advisor.rules.nvlinks import is_module

# Achieved share of the bandwidth that NCCL's model counts. Each is a round number near the large messages of the rows
# named here, which benchmarks/data/published-collectives.jsonl marks as `fit`; all other rows of that file check them.
RING = 0.97  # NVLink, three GPUs and more: 4 to 8 H200 with NVLS off
PAIR = 0.88  # NVLink, two GPUs, each of which sends and reduces for the same peer: two H200
XGMI = 0.7  # of the data sheet, which is before protocol: 8 MI300X
DIRECT = 0.88  # PCIe; assumed to be as NVLink between two GPUs
HOST_MEMORY = 0.57  # every byte is written and read over PCIe: two H200 with P2P off, 4 RTX 5090 on EPYC
NETWORK = 0.93  # 4 nodes of 8 H100 with InfiniBand, 4 nodes of 8 B200 with EFA

# Bytes per second between two sockets of a host whose CPU is unknown, or some EPYC, by the PCIe generation that the CPU
# must have: what NCCL counts for Skylake, EPYC and Sapphire Rapids (src/graph/topo.cc:60-83).
ASSUMED_BETWEEN_SOCKETS = {3: 10e9, 4: 16e9, 5: 22e9}

# Bytes per second of TCP by one thread and one socket, NCCL's default: 3.0-3.4e9 over loopback; 4 threads 7.2-9.7e9.
TCP_THREAD = 3.2e9
TCP_FURTHER_THREAD = 0.5  # of the first

# Where a source lists no rate: a 100 Gb/s adapter, and 10 Gb/s Ethernet; 100 Gb/s on a host of eight GPU modules of
# Ampere or later, since that is the least that clouds and vendors put beside them (a2-ultragpu-8g 100, p4d 400 Gb/s).
ASSUMED_RDMA = 12.5e9
ASSUMED_ETHERNET = 1.25e9
ASSUMED_ETHERNET_OF_MODULES = 12.5e9

RING_GRAPH = 0  # its number in NCCL's dump

_DIRECT_PCIE: tuple[LinkKind, ...] = ("pcie-switch", "pcie-switches")
_PCIE: tuple[LinkKind, ...] = (*_DIRECT_PCIE, "host-bridge", "numa-node")
_MESH: tuple[LinkKind, ...] = ("nvlink", "xgmi")


def peer_to_peer(machine: Machine) -> bool:
    return not _is_set(machine, "NCCL_P2P_DISABLE")


def ring_share(gpus: int) -> float:
    """Share of NVLink's bandwidth, as NCCL counts it, that a ring over so many GPUs reaches."""
    return PAIR if gpus == 2 else RING


def mesh_speed(machine: Machine, link: Link, gpus: int) -> float | None:
    """Bytes per second of a link that is not PCIe in a ring of `gpus`; None for PCIe and with peer to peer off."""
    if link.kind not in _MESH or link.bandwidth is None or not peer_to_peer(machine):
        return None
    if link.bandwidth_source == "measured":
        return link.bandwidth
    gpu = machine.gpu(link.a)
    rate = nvlink_rate(gpu)
    share = ring_share(gpus) * nvlink_speed(capability_of(gpu)) / rate if link.kind == "nvlink" and rate else XGMI
    return share * link.bandwidth


def dumped_ring_speed(machine: Machine, gpus: Collection[str]) -> float | None:
    """Bytes per second of the rings that NCCL itself laid over NVLink; None where its dump is not of just these GPUs.

    The search counts as `nvlink_speed` does and rounds down, which is what RING allows for.
    """
    numbers = {machine.gpu(gpu).index for gpu in gpus}
    for graph in machine.nccl_graphs if peer_to_peer(machine) else ():
        if graph.id == RING_GRAPH and graph.type_intra == "NVL" and all(set(c) == numbers for c in graph.channels):
            return ring_share(len(gpus)) / RING * len(graph.channels) * graph.bandwidth_intra
    return None


def hop_speed(machine: Machine, link: Link, *, gpus: Sequence[str], concurrent: int) -> float | None:
    """Bytes per second of a hop in a ring over these GPUs; `concurrent` rings share the link between sockets."""
    mesh = mesh_speed(machine, link, len(gpus))
    if mesh is not None:
        return mesh
    if not peer_to_peer(machine) and _is_set(machine, "NCCL_SHM_DISABLE"):
        return tcp_speed(machine.environment) / concurrent
    if link.bandwidth_source == "measured" and link.kind not in _MESH:
        return link.bandwidth
    a, b = machine.gpu(link.a), machine.gpu(link.b)
    kind = _pcie_kind(link, a, b)
    if link.bandwidth is None:
        return None
    wire = link.bandwidth if link.kind in _PCIE else None
    slots = [PCIE_SHARE * slot for slot in (attachment(a), attachment(b), wire) if slot is not None]
    if not slots:
        return None
    between = _between_sockets(machine, link, a) / concurrent if kind == "inter-socket" else inf
    if _is_direct(machine, kind, a, b, len(gpus)):
        return min(DIRECT * min(slots), between)
    return min(HOST_MEMORY * min(slots) / _behind_one_switch(machine, link, gpus), between)


def network_speed(machine: Machine, gpus: int, concurrent: int) -> float:
    """Bytes per second that one of `concurrent` groups with `gpus` GPUs a host sends to the next host.

    NCCL uses RDMA adapters if there are any, and one adapter a GPU at most; EFA's plugin joins several to one.
    """
    rdma = [nic.bandwidth or ASSUMED_RDMA for nic in machine.nics if nic.kind != "ethernet"]
    if rdma and not _is_set(machine, "NCCL_IB_DISABLE"):
        rates = [NETWORK * rate for rate in rdma]
    else:
        assumed = assumed_ethernet(machine)
        ethernet = [nic.bandwidth or assumed for nic in machine.nics] or [assumed]
        rates = [min(NETWORK * rate, tcp_speed(machine.environment)) for rate in ethernet]
    most = len(rates) if any(nic.kind == "efa" for nic in machine.nics) else max(1, len(machine.gpus))
    total = sum(sorted(rates, reverse=True)[:most]) / concurrent
    slots = [PCIE_SHARE * slot for slot in map(attachment, machine.gpus) if slot is not None]
    return min(total, gpus * min(slots)) if slots else total


def assumed_ethernet(machine: Machine) -> float:
    """Bytes per second of an Ethernet adapter of which no source tells the rate."""
    recent = [gpu for gpu in machine.gpus if is_module(gpu) and int((capability_of(gpu) or "0").split(".")[0]) >= 8]
    return ASSUMED_ETHERNET_OF_MODULES if len(recent) >= 8 else ASSUMED_ETHERNET


def tcp_speed(environment: Mapping[str, str]) -> float:
    """Bytes per second of NCCL's socket transport, by NCCL_SOCKET_NTHREADS."""
    setting = environment.get("NCCL_SOCKET_NTHREADS", "1")
    threads = int(setting) if setting.isdecimal() else 1
    return TCP_THREAD * (1 + TCP_FURTHER_THREAD * (max(1, min(threads, 4)) - 1))


def capability_of(gpu: Gpu) -> str | None:
    """Compute capability as probed, or as the table has it for the GPU's name."""
    model = gpu_model(gpu.name) if gpu.name else None
    return gpu.compute_capability or (model.compute_capability if model else None)


def _pcie_kind(link: Link, a: Gpu, b: Gpu) -> LinkKind:
    """Kind of the PCIe way between two GPUs; what NVLink's cell hides is guessed from the NUMA nodes."""
    if link.kind not in _MESH:
        return link.kind
    apart = a.numa is not None and b.numa is not None and a.numa != b.numa
    return "inter-socket" if apart else "host-bridge"


def _between_sockets(machine: Machine, link: Link, gpu: Gpu) -> float:
    """Bytes per second of the link between sockets, which NVLink's cell hides, and for which NCCL has one EPYC only."""
    known = link.kind == "inter-socket" and link.bandwidth_source != "assumed"
    if known and link.bandwidth is not None and machine.host.cpu_vendor != "AuthenticAMD":
        return link.bandwidth
    generation = generation_under_load(gpu) or 4
    return ASSUMED_BETWEEN_SOCKETS.get(generation, max(ASSUMED_BETWEEN_SOCKETS.values()))


def _behind_one_switch(machine: Machine, link: Link, gpus: Sequence[str]) -> int:
    """Count the GPUs of the ring that reach host memory through the same PCIe switch, and so through one slot."""
    if link.kind not in _DIRECT_PCIE:
        return 1
    near = [k for k in machine.links if k.kind in _DIRECT_PCIE and link.a in (k.a, k.b) and {k.a, k.b} <= set(gpus)]
    return 1 + len(near)


def _is_direct(machine: Machine, kind: LinkKind, a: Gpu, b: Gpu, gpus: int) -> bool:
    """Whether NCCL lets the GPUs copy to each other: below one host bridge, or two GPUs on an AMD host.

    The driver's answer for the pair decides whether they can; without one, the data sheets do.
    """
    if not peer_to_peer(machine):
        return False
    pair = {a.id, b.id}
    told = [p.status for p in machine.peer_access if {p.a, p.b} == pair and p.capability in ("read", "write")]
    models = [gpu_model(gpu.name) if gpu.name else None for gpu in (a, b)]
    able = set(told) == {"OK"} if told else all(model is not None and model.pcie_p2p for model in models)
    return able and (kind in _DIRECT_PCIE or (gpus <= 2 and machine.host.cpu_vendor == "AuthenticAMD"))


def _is_set(machine: Machine, switch: str) -> bool:
    return machine.environment.get(switch, "0") not in ("", "0")

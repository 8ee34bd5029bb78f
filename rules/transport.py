"""What one hop between two GPUs, or two hosts, really moves: NCCL's choice of path, and how much of the link it gets.

NCCL talks over NVLink where there is one; over PCIe directly only below a common host bridge; else through host memory
(src/graph/paths.cc:355-411 of 2.30.7). The NCCL_*_DISABLE variables found in the environment are respected.
"""

from collections.abc import Mapping

from advisor.rules.hardware import gpu_model
from advisor.rules.links import attachment, nvlink_rate
from advisor.rules.machine import Gpu, Link, LinkKind, Machine
from advisor.rules.nccl import INTEL_OVERHEAD, PCIE_SHARE, nvlink_speed

# Achieved share of the bandwidth that NCCL's model counts. Direct copies: all-reduce of 64 MiB to 1 GiB over the 18
# NVLinks of two H200 runs at 0.88 of 370.8e9 B/s. Through host memory every byte crosses it twice: the same two GPUs
# with P2P off move 0.69 of PCIe 5 x16 after protocol and Intel's overhead; 4 and 8 RTX 5090 move 0.73 and 0.58
# (https://github.com/NVIDIA/nccl/issues/1639).
DIRECT = 0.88
HOST_MEMORY = 0.7
NETWORK = 0.9  # several nodes run 5-20 % below NCCL's model
XGMI = 0.75  # of the data sheet; assumed, AMD prints no rate after protocol

# Bytes per second of TCP by one thread and one socket, NCCL's default: 3.0-3.4e9 over loopback; 4 threads 7.2-9.7e9.
TCP_THREAD = 3.2e9
TCP_FURTHER_THREAD = 0.5  # of the first

# Where a source lists no rate: a 100 Gb/s adapter, and 10 Gb/s Ethernet.
ASSUMED_RDMA = 12.5e9
ASSUMED_ETHERNET = 1.25e9

_DIRECT_PCIE: tuple[LinkKind, ...] = ("pcie-switch", "pcie-switches")
_MESH: tuple[LinkKind, ...] = ("nvlink", "xgmi")


def peer_to_peer(machine: Machine) -> bool:
    return not _is_set(machine, "NCCL_P2P_DISABLE")


def mesh_speed(machine: Machine, link: Link) -> float | None:
    """Bytes per second of a GPU-to-GPU link that is not PCIe; None for PCIe and where peer to peer is switched off."""
    if link.kind not in _MESH or link.bandwidth is None or not peer_to_peer(machine):
        return None
    if link.bandwidth_source == "measured":
        return link.bandwidth
    gpu = machine.gpu(link.a)
    rate = nvlink_rate(gpu)
    share = nvlink_speed(capability_of(gpu)) / rate if link.kind == "nvlink" and rate else XGMI
    return DIRECT * share * link.bandwidth


def hop_speed(machine: Machine, link: Link, *, gpus: int, concurrent: int) -> float | None:
    """Bytes per second of a hop in a ring over `gpus` GPUs; `concurrent` rings share the link between sockets."""
    mesh = mesh_speed(machine, link)
    if mesh is not None:
        return mesh
    if not peer_to_peer(machine) and _is_set(machine, "NCCL_SHM_DISABLE"):
        return tcp_speed(machine.environment) / concurrent
    if link.bandwidth_source == "measured" and link.kind not in _MESH:
        return link.bandwidth
    a, b = machine.gpu(link.a), machine.gpu(link.b)
    kind, wire = _pcie_path(link, a, b)
    if wire is None:
        return None
    if kind == "inter-socket":
        wire /= concurrent
    if kind not in _DIRECT_PCIE and machine.host.cpu_vendor != "AuthenticAMD":
        wire /= INTEL_OVERHEAD
    return wire * (DIRECT if _is_direct(machine, kind, a, b, gpus) else HOST_MEMORY)


def network_speed(machine: Machine, gpus: int, concurrent: int) -> float:
    """Bytes per second that one of `concurrent` groups with `gpus` GPUs a host sends to the next host.

    NCCL uses one adapter a GPU at most, and RDMA adapters only if there are any.
    """
    rdma = [nic.bandwidth or ASSUMED_RDMA for nic in machine.nics if nic.kind != "ethernet"]
    if rdma and not _is_set(machine, "NCCL_IB_DISABLE"):
        rates = [NETWORK * rate for rate in rdma]
    else:
        ethernet = [nic.bandwidth or ASSUMED_ETHERNET for nic in machine.nics] or [ASSUMED_ETHERNET]
        rates = [min(NETWORK * rate, tcp_speed(machine.environment)) for rate in ethernet]
    total = sum(sorted(rates, reverse=True)[: max(1, len(machine.gpus))]) / concurrent
    slots = [PCIE_SHARE * slot for slot in map(attachment, machine.gpus) if slot is not None]
    return min(total, gpus * min(slots)) if slots else total


def tcp_speed(environment: Mapping[str, str]) -> float:
    """Bytes per second of NCCL's socket transport, by NCCL_SOCKET_NTHREADS."""
    setting = environment.get("NCCL_SOCKET_NTHREADS", "1")
    threads = int(setting) if setting.isdecimal() else 1
    return TCP_THREAD * (1 + TCP_FURTHER_THREAD * (max(1, min(threads, 4)) - 1))


def capability_of(gpu: Gpu) -> str | None:
    """Compute capability as probed, or as the table has it for the GPU's name."""
    model = gpu_model(gpu.name) if gpu.name else None
    return gpu.compute_capability or (model.compute_capability if model else None)


def _pcie_path(link: Link, a: Gpu, b: Gpu) -> tuple[LinkKind, float | None]:
    """Kind and speed of the PCIe way between two GPUs; what NVLink's cell hides is guessed from the NUMA nodes."""
    slots = [PCIE_SHARE * slot for slot in (attachment(a), attachment(b)) if slot is not None]
    if link.kind in _MESH:
        apart = a.numa is not None and b.numa is not None and a.numa != b.numa
        return "inter-socket" if apart else "host-bridge", min(slots, default=None)
    if link.bandwidth is None:
        return link.kind, None
    shared = link.bandwidth if link.kind == "inter-socket" else PCIE_SHARE * link.bandwidth
    return link.kind, min([shared, *slots])


def _is_direct(machine: Machine, kind: LinkKind, a: Gpu, b: Gpu, gpus: int) -> bool:
    """Whether NCCL lets the GPUs copy to each other: below one host bridge, or two GPUs on an AMD host."""
    if not peer_to_peer(machine):
        return False
    models = [gpu_model(gpu.name) if gpu.name else None for gpu in (a, b)]
    able = all(model is not None and model.pcie_p2p for model in models)
    return able and (kind in _DIRECT_PCIE or (gpus <= 2 and machine.host.cpu_vendor == "AuthenticAMD"))


def _is_set(machine: Machine, switch: str) -> bool:
    return machine.environment.get(switch, "0") not in ("", "0")

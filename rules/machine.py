"""Facts about one machine, or about a number of equal hosts: what `advisor probe` makes and stores.

Unknown is None, and an entry of `Machine.unknown` says why. SI base units throughout.
"""

from typing import Literal

from msgspec import Struct

from advisor.rules.errors import AdvisorError

LinkKind = Literal[
    "nvlink",  # direct or through NVSwitch; `Link.code` carries the number of links, NV12
    "xgmi",
    "c2c",
    "pcie-switch",  # PIX: at most one PCIe bridge between the two
    "pcie-switches",  # PXB: several PCIe bridges, no host bridge
    "host-bridge",  # PHB: through one PCIe host bridge, typically the CPU
    "numa-node",  # NODE: through host bridges of one NUMA node
    "inter-socket",  # SYS (older: SOC): through the link between NUMA nodes
    "host-memory",  # between processes on CPUs
    "network",  # between hosts
]
LIVE = "this machine"  # the source of a machine that was probed just now
Source = Literal["measured", "probed", "data sheet", "assumed"]


class Value(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all stored values: immutable, and a field that we do not know is an error that names it."""


class Pcie(Value, frozen=True, kw_only=True):
    """PCIe attachment. An idle GPU trains its link down to generation 1, so only the maximum says what it can do."""

    generation: int | None = None
    width: int | None = None  # lanes
    generation_max: int | None = None
    width_max: int | None = None


class Gpu(Value, frozen=True, kw_only=True):
    id: str  # what the source calls it: GPU0
    index: int
    name: str | None = None
    memory: int | None = None  # bytes, as the driver reports them
    memory_used: int | None = None  # bytes, at the time of the probe
    compute_capability: str | None = None  # "9.0"
    pcie: Pcie | None = None
    numa: int | tuple[int, ...] | None = None  # a tuple where the source prints a list
    cpu_affinity: tuple[int, ...] | None = None  # () is a blank cell, None: the source has no such column
    gpu_numa_id: int | None = None
    uuid: str | None = None
    bus_id: str | None = None


class Nic(Value, frozen=True, kw_only=True):
    id: str  # what the source calls it: NIC0, mlx5_0
    name: str | None = None  # the device, mlx5_0
    kind: Literal["infiniband", "roce", "ethernet", "efa"] | None = None
    bandwidth: float | None = None  # bytes per second, one direction
    numa: int | None = None


class Link(Value, frozen=True, kw_only=True):
    """How two devices reach each other, as the source prints it. `a` comes before `b` in the source's order."""

    a: str
    b: str
    code: str  # NV18, PIX, SYS
    kind: LinkKind
    bandwidth: float | None = None  # bytes per second, one direction, of this pair alone
    bandwidth_source: Source | None = None


class Host(Value, frozen=True, kw_only=True):
    os: str | None = None
    cpu: str | None = None  # model name
    cpu_vendor: str | None = None  # GenuineIntel, AuthenticAMD, ...
    sockets: int | None = None
    numa_nodes: int | None = None
    cores: int | None = None  # physical
    cpus: int | None = None  # logical processors that this process may use
    memory: int | None = None  # bytes; the cgroup's limit where that is lower
    memory_available: int | None = None  # bytes, at the time of the probe
    shm: int | None = None  # bytes, size of /dev/shm
    memlock: int | None = None  # bytes; -1 is no limit
    virtual: bool | None = None  # a virtual machine


class Software(Value, frozen=True, kw_only=True):
    python: str | None = None
    torch: str | None = None
    torch_cuda: str | None = None  # the CUDA version torch was built for; None on CPU builds
    nccl: str | None = None
    driver: str | None = None
    cuda_driver: str | None = None  # the newest CUDA version the driver can run


class Unknown(Value, frozen=True, kw_only=True):
    what: str
    why: str


class Machine(Value, frozen=True, kw_only=True):
    """One host, or `nodes` equal hosts of which one is listed."""

    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    links: tuple[Link, ...] = ()
    host: Host = Host()
    software: Software = Software()
    unknown: tuple[Unknown, ...] = ()
    nodes: int = 1
    environment: dict[str, str] = {}  # variables that steer NCCL, CUDA and torch, as found
    environment_files: dict[str, str] = {}  # of those, the ones that a file of NCCL sets: name -> file
    source: str = LIVE

    def gpu(self, gpu_id: str) -> Gpu:
        for gpu in self.gpus:
            if gpu.id == gpu_id:
                return gpu
        known = ", ".join(g.id for g in self.gpus) or "none"
        raise AdvisorError(f"this machine has no {gpu_id}", f"its GPUs are: {known}")

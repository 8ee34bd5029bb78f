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


class NvLink(Value, frozen=True, kw_only=True):
    """One NVLink of a GPU and where it leads."""

    number: int | None = None  # as `nvidia-smi nvlink -s` counts them
    active: bool | None = None
    version: int | None = None  # NVLink generation
    bandwidth: float | None = None  # bytes per second, one direction
    remote: str | None = None  # the other end's PCI address as the source prints it
    remote_kind: Literal["gpu", "switch", "cpu"] | None = None


class MigInstance(Value, frozen=True, kw_only=True):
    """A part of a GPU that CUDA shows as a device of its own; NCCL does not join two parts of one GPU."""

    uuid: str
    name: str | None = None  # its profile, 3g.40gb
    memory: int | None = None  # bytes
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Process(Value, frozen=True, kw_only=True):
    """A process that uses a GPU."""

    pid: int
    memory: int | None = None  # bytes
    name: str | None = None


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
    numa_affinity: int | None = None  # of AMD GPUs: the node of the nearest processors, where `numa` may be its own
    uuid: str | None = None
    bus_id: str | None = None  # as the kernel writes it, 0000:3b:00.0
    nvlinks: tuple[NvLink, ...] | None = None
    mig: tuple[MigInstance, ...] | None = None  # None: not cut into instances, or not known
    ecc: bool | None = None
    ecc_uncorrected: int | None = None  # errors since the driver was loaded
    throttle: tuple[str, ...] | None = None  # why the clocks are held down now, () for no reason
    processes: tuple[Process, ...] | None = None
    fabric_state: str | None = None  # of the NVSwitch fabric manager: completed, in progress, not started
    utilization: float | None = None  # share of the last second in which a kernel ran, 0 to 1, at the time of the probe
    compute_mode: str | None = None  # Default, Exclusive_Process, Prohibited
    power: float | None = None  # watts, at the time of the probe


class Nic(Value, frozen=True, kw_only=True):
    id: str  # what the source calls it: NIC0, mlx5_0
    name: str | None = None  # the device, mlx5_0
    kind: Literal["infiniband", "roce", "ethernet", "efa"] | None = None
    bandwidth: float | None = None  # bytes per second, one direction
    numa: int | None = None
    bus_id: str | None = None  # as the kernel writes it, 0000:3b:00.0
    state: Literal["active", "down"] | None = None  # of its port
    link_downed: int | None = None  # how often its port lost the link since the counter was set to zero


class Interface(Value, frozen=True, kw_only=True):
    """A network interface of the host, as `ip address` lists it."""

    name: str
    kind: Literal["ethernet", "infiniband", "loopback", "bridge", "tunnel", "virtual"] | None = None
    up: bool | None = None
    addresses: tuple[str, ...] = ()  # with the length of the network, 10.0.0.5/24
    bandwidth: float | None = None  # bytes per second, one direction
    default_route: bool | None = None


class NcclLog(Value, frozen=True, kw_only=True):
    """What a run with NCCL_DEBUG printed."""

    version: str | None = None
    interface: str | None = None  # that the bootstrap uses
    network: str | None = None  # IB, Socket, AWS Libfabric: between hosts
    provider: str | None = None  # that libfabric selected: efa, tcp
    devices: tuple[str, ...] | None = None  # that NET/IB or NET/Socket uses: mlx5_0, eth0; () NET/IB found none
    transports: dict[str, int] = {}  # "P2P/CUMEM", "SHM/direct", "NET/Socket": how many channels go that way
    variables: dict[str, str] = {}  # that it says were set
    warnings: tuple[str, ...] = ()  # texts of the WARN lines, each once
    hosts: tuple[str, ...] = ()  # that printed a warning
    complete: bool | None = None  # it says "Init COMPLETE"


class SharedSegment(Value, frozen=True, kw_only=True):
    """A file in /dev/shm that NCCL or torch made."""

    name: str
    size: int  # bytes
    open: bool | None = None  # by any process


class Link(Value, frozen=True, kw_only=True):
    """How two devices reach each other, as the source prints it. `a` comes before `b` in the source's order."""

    a: str
    b: str
    code: str  # NV18, PIX, SYS
    kind: LinkKind
    bandwidth: float | None = None  # bytes per second, one direction, of this pair alone
    bandwidth_source: Source | None = None


class PeerAccess(Value, frozen=True, kw_only=True):
    """What the driver answers when asked whether GPU `a` can reach GPU `b`, as `nvidia-smi topo -p2p` prints it."""

    a: str
    b: str
    capability: Literal["read", "write", "nvlink", "atomics", "pcie"]
    status: str  # OK, CNS (chipset), GNS (GPU), TNS (topology), DR (registry key), NS, U


class Distance(Value, frozen=True, kw_only=True):
    """How far apart two AMD GPUs are, as `rocm-smi --showtopo` prints it."""

    a: str
    b: str
    weight: int | None = None
    hops: int | None = None
    link_type: str | None = None  # XGMI, PCIE; XXXX where the driver does not tell


class PciNode(Value, frozen=True, kw_only=True):
    """A device or switch of the PCI tree, as NCCL sees it: a switch is one node, the ports below and above it none."""

    id: str  # the PCI address, 0000:3b:00.0; of a root complex pci0000:3a, or cpu0 for all of a CPU in NCCL's dump
    kind: Literal["host-bridge", "bridge", "gpu", "nic", "nvswitch", "other"]
    parent: str | None = None  # the id of the node above; None at the top
    bandwidth: float | None = None  # bytes per second of the link to the parent, one direction
    numa: int | None = None


class NumaNode(Value, frozen=True, kw_only=True):
    id: int
    cpus: tuple[int, ...] | None = None  # logical processors


class NcclGraph(Value, frozen=True, kw_only=True):
    """One graph of NCCL's dump (NCCL_GRAPH_DUMP_FILE): the rings or trees that it laid."""

    id: int  # 0 ring, 1 tree, 2 CollNet chain, 3 NVLS, 4 CollNet direct
    pattern: int
    channels: tuple[tuple[int, ...], ...]  # device numbers in order
    bandwidth_intra: float  # bytes per second of one channel inside a host
    bandwidth_inter: float  # bytes per second of one channel between hosts
    type_intra: str  # NVL, PIX, PHB, SYS, ...
    type_inter: str


class Host(Value, frozen=True, kw_only=True):
    os: str | None = None
    cpu: str | None = None  # model name
    cpu_vendor: str | None = None  # GenuineIntel, AuthenticAMD, ...
    cpu_family: int | None = None  # x86: as /proc/cpuinfo has it, 6
    cpu_model_number: int | None = None  # x86: "model" of /proc/cpuinfo, 143 for Sapphire Rapids
    sockets: int | None = None
    numa_nodes: int | None = None
    cores: int | None = None  # physical
    cpus: int | None = None  # logical processors that this process may use
    memory: int | None = None  # bytes; the cgroup's limit where that is lower
    memory_available: int | None = None  # bytes, at the time of the probe
    shm: int | None = None  # bytes, size of /dev/shm
    shm_free: int | None = None  # bytes
    memlock: int | None = None  # bytes; -1 is no limit
    stack: int | None = None  # bytes, as `ulimit -s` limits it; -1 is no limit
    open_files: int | None = None  # as `ulimit -n` limits them
    cpu_quota: float | None = None  # processors' worth of time that the cgroup grants; None: no limit, or not known
    container: bool | None = None
    kernel_command_line: str | None = None
    rdma_devices: bool | None = None  # /dev/infiniband is there: a container may use the RDMA devices
    iommu: Literal["off", "passthrough", "translating"] | None = None
    acs: bool | None = None  # PCIe switches or ports above GPUs send peer-to-peer traffic up to the root
    virtual: bool | None = None  # a virtual machine
    topology_file: str | None = None  # that the vendor of a virtual machine made for NCCL: NCCL_TOPO_FILE


class Software(Value, frozen=True, kw_only=True):
    python: str | None = None
    torch: str | None = None
    torch_cuda: str | None = None  # the CUDA version torch was built for; None on CPU builds
    nccl: str | None = None
    driver: str | None = None
    cuda_driver: str | None = None  # the newest CUDA version the driver can run
    fabric_manager: Literal["active", "inactive", "absent"] | None = None
    mps: bool | None = None  # CUDA's multi-process service runs


class Price(Value, frozen=True, kw_only=True):
    """What a vendor lists for one host, on demand."""

    dollars_per_hour: float  # US dollars
    region: str
    date: str  # of the list, 2026-07-20
    source: str


class Unknown(Value, frozen=True, kw_only=True):
    what: str
    why: str


class Contradiction(Value, frozen=True, kw_only=True):
    """Two sources of one machine that say different things; the first was taken."""

    what: str  # GPU0.memory, link GPU0-GPU1
    sources: tuple[str, str]
    values: tuple[str, str]


class Machine(Value, frozen=True, kw_only=True):
    """One host, or `nodes` equal hosts of which one is listed."""

    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    links: tuple[Link, ...] = ()
    peer_access: tuple[PeerAccess, ...] = ()
    distances: tuple[Distance, ...] = ()
    pci: tuple[PciNode, ...] = ()
    numa_nodes: tuple[NumaNode, ...] = ()
    nccl_graphs: tuple[NcclGraph, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    nccl_log: NcclLog | None = None
    failed_connections: tuple[str, ...] = ()  # lines in which torch, Gloo or NCCL say that a rank reached no other
    kernel_log: tuple[str, ...] = ()  # lines of dmesg on GPUs, PCIe, the IOMMU and killed processes
    shared_segments: tuple[SharedSegment, ...] = ()
    host: Host = Host()
    software: Software = Software()
    unknown: tuple[Unknown, ...] = ()
    nodes: int = 1
    environment: dict[str, str] = {}  # variables that steer NCCL, CUDA and torch, as found
    environment_files: dict[str, str] = {}  # of those, the ones that a file of NCCL sets: name -> file
    environment_hidden: dict[str, str] = {}  # files of NCCL whose other value is not in effect: name -> file
    contradictions: tuple[Contradiction, ...] = ()
    price: Price | None = None  # of one host; None: not rented, or no list names it
    source: str = LIVE

    def gpu(self, gpu_id: str) -> Gpu:
        for gpu in self.gpus:
            if gpu.id == gpu_id:
                return gpu
        known = ", ".join(g.id for g in self.gpus) or "none"
        raise AdvisorError(f"this machine has no {gpu_id}", f"its GPUs are: {known}")

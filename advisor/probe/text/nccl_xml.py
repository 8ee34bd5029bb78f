"""Read NCCL's topology: what NCCL_TOPO_DUMP_FILE writes, and the static files that cloud vendors ship for it.

NCCL lists the GPUs and network cards that it uses and the PCI switches above them, with one <cpu> for each NUMA node.
A vendor's file may leave the devices' kinds to the PCI classes, or out altogether.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple
from xml.etree.ElementTree import Element

from msgspec import structs

from advisor.probe.text.xml_element import find_element
from advisor.rules.errors import AdvisorError
from advisor.rules.hardware import pci_name
from advisor.rules.machine import Gpu, Host, Link, Machine, Nic, NumaNode, NvLink, Pcie, PciNode, Unknown
from advisor.rules.pci import link_bandwidth, link_generation, pci_address

MOST_DEVICES = 512  # GPUs and network cards of one host
MOST_NVLINKS = 36  # between two devices
MOST_CPUS = 16384
AGAIN = "write the file again: NCCL_TOPO_DUMP_FILE=topo.xml torchrun ..."
ONE_HOST = "keep the <cpu> elements of one host_hash, or write the file on one host: torchrun --nnodes 1 ..."

NVIDIA, AMD, AMAZON = "10de", "1002", "1d0f"

# By the beginning of the PCI class; a longer one stands before a shorter.
Kind = Literal["bridge", "gpu", "nic", "nvswitch", "other"]
KINDS: tuple[tuple[str, Kind], ...] = (
    ("0604", "bridge"),
    ("068001", "other"),  # a Power9 CPU's end of an NVLink
    ("0680", "nvswitch"),
    ("02", "nic"),
    ("03", "gpu"),
)
REMOTES: dict[Kind, Literal["gpu", "switch", "cpu"]] = {"gpu": "gpu", "nvswitch": "switch", "other": "cpu"}


class Device(NamedTuple):
    """A <pci> element and where it stands."""

    element: Element
    node: PciNode


def read_nccl_topology(text: str, source: str) -> Machine | None:
    """Build a machine from the <system> element in a text; of several equal hosts from the first.

    Raises AdvisorError where the element is broken, or holds hosts that differ.
    """
    found = find_element(text, "system", "<cpu")
    if found is None:
        if "<cpu " in text and ' numaid="' in text:
            raise AdvisorError("the NCCL topology lacks its first line, <system version=...>", AGAIN)
        return None
    system, others = found
    hosts = _hosts(system)
    if not hosts:
        raise AdvisorError("the NCCL topology has no <cpu> right below <system>", AGAIN)
    machines = [_machine(cpus, source) for cpus in hosts]
    if len({_shape(machine) for machine in machines}) > 1:
        raise AdvisorError(f"the NCCL topology holds {len(hosts)} hosts that differ", ONE_HOST)
    gaps = [f"the text holds {others + 1} NCCL topologies; the first was taken"] if others else []
    unknown = tuple(Unknown(what="links", why=why) for why in gaps)
    return structs.replace(machines[0], nodes=len(hosts), unknown=unknown)


def _hosts(system: Element) -> list[list[Element]]:
    hosts: dict[str, list[Element]] = {}
    for cpu in system.findall("cpu"):
        hosts.setdefault(cpu.get("host_hash", ""), []).append(cpu)
    return list(hosts.values())


def _shape(machine: Machine) -> tuple[object, ...]:
    gpus = sorted((gpu.name or "", gpu.compute_capability or "", len(gpu.nvlinks or ())) for gpu in machine.gpus)
    return tuple(gpus), len(machine.nics)


def _machine(cpus: list[Element], source: str) -> Machine:
    devices: dict[str, Device] = {}
    roots: list[PciNode] = []
    for number, cpu in enumerate(cpus):
        root = PciNode(id=f"cpu{number}", kind="host-bridge", numa=_numa(cpu))
        roots.append(root)
        for device in _devices(cpu, root):
            devices.setdefault(device.node.id, device)
    gpus = _gpus(devices.values())
    nics = (*_nics_on_pci(devices.values()), *_nics_elsewhere(cpus))
    if len(gpus) + len(nics) > MOST_DEVICES:
        raise AdvisorError(
            f"the NCCL topology has {len(gpus) + len(nics)} GPUs and network cards on one host", ONE_HOST
        )
    return Machine(
        gpus=gpus,
        nics=_named_once(nics),
        links=tuple(_xgmi_links(gpus, devices)),
        pci=(*roots, *(device.node for device in devices.values())),
        numa_nodes=tuple({n: NumaNode(id=n, cpus=_cpus(c)) for c in cpus if (n := _numa(c)) is not None}.values()),
        host=_host(cpus[0]),
        source=source,
    )


def _devices(cpu: Element, root: PciNode) -> Iterator[Device]:
    """Yield the PCI devices and switches of a CPU, those above first."""
    waiting = [(element, root.id) for element in cpu.findall("pci")][::-1]
    while waiting:
        element, parent = waiting.pop()
        address = pci_address(element.get("busid", ""))
        node = PciNode(
            id=address,
            kind=_kind(element),
            parent=parent,
            bandwidth=link_bandwidth(element.get("link_speed"), element.get("link_width")),
            numa=root.numa,
        )
        if address:
            yield Device(element, node)
        waiting += [(below, address or parent) for below in element.findall("pci")][::-1]


def _kind(element: Element) -> Kind:
    if element.find("gpu") is not None:
        return "gpu"
    if element.find("nic") is not None:
        return "nic"
    return _kind_of_class(element.get("class")) or ("bridge" if element.find("pci") is not None else "other")


def _kind_of_class(text: str | None) -> Kind | None:
    number = _digits(text)
    return next((kind for beginning, kind in KINDS if number.startswith(beginning)), None)


def _gpus(devices: Iterable[Device]) -> tuple[Gpu, ...]:
    """List the GPUs under the numbers of their <gpu> elements; without such, or if those clash, in PCI order."""
    found = [(d, gpu) for d in devices if d.node.kind == "gpu" for gpu in _or_none(d.element.findall("gpu"))]
    found.sort(key=lambda entry: entry[0].node.id)
    given = [_integer(gpu.get("dev")) if gpu is not None else None for _, gpu in found]
    numbers = [number for number in given if number is not None and number >= 0]
    if len(set(numbers)) < len(numbers) or len(numbers) < len(found):
        given = list(range(len(found)))
    gpus = [_gpu(number or 0, device, gpu) for number, (device, gpu) in zip(given, found, strict=True)]
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def _gpu(index: int, device: Device, gpu: Element | None) -> Gpu:
    element, node = device
    vendor = _digits(element.get("vendor"))
    sm = _integer(gpu.get("sm")) if gpu is not None and vendor != AMD else None
    generation, width = link_generation(element.get("link_speed")), _integer(element.get("link_width")) or None
    return Gpu(
        id=f"GPU{index}",
        index=index,
        name=pci_name(vendor, _digits(element.get("device"))),
        compute_capability=f"{sm // 10}.{sm % 10}" if sm is not None and sm > 0 else None,
        pcie=Pcie(generation_max=generation, width_max=width) if generation or width else None,
        numa=node.numa,
        bus_id=node.id,
        nvlinks=None if gpu is None else tuple(link for entry in gpu.findall("nvlink") for link in _nvlinks(entry)),
    )


def _nvlinks(entry: Element) -> list[NvLink]:
    """Turn an entry for all links to one device into one for each; NCCL counts active links only."""
    count = min(max(_integer(entry.get("count")) or 0, 0), MOST_NVLINKS)
    kind = _kind_of_class(entry.get("tclass"))
    link = NvLink(active=True, remote=entry.get("target"), remote_kind=REMOTES.get(kind) if kind else None)
    return [link] * count


def _xgmi_links(gpus: tuple[Gpu, ...], devices: dict[str, Device]) -> Iterator[Link]:
    """Yield the links of RCCL's dumps: Infinity Fabric between AMD GPUs."""
    ids = {gpu.bus_id: gpu.id for gpu in gpus}
    order = {gpu.id: place for place, gpu in enumerate(gpus)}
    pairs = set()
    for gpu in gpus:
        for entry in devices[gpu.bus_id or ""].element.iterfind("gpu/xgmi"):
            other = ids.get(pci_address(entry.get("target", "")))
            if other is not None and other != gpu.id:
                pairs.add(tuple(sorted((gpu.id, other), key=order.__getitem__)))
    for a, b in sorted(pairs, key=lambda pair: [order[end] for end in pair]):
        yield Link(a=a, b=b, code="XGMI", kind="xgmi")


def _nics_on_pci(devices: Iterable[Device]) -> Iterator[Nic]:
    """List the network cards in PCI order: each <net>, or the device where it has none."""
    for device in sorted(devices, key=lambda device: device.node.id):
        element, node = device
        if node.kind == "nic":
            yield from (_nic(net, element, node.numa, node.id) for net in _or_none(list(_nets(element))))


def _nics_elsewhere(cpus: Iterable[Element]) -> Iterator[Nic]:
    """List the network cards of which NCCL does not know the slot: virtual ones."""
    return (_nic(net, None, _numa(cpu), None) for cpu in cpus for net in _nets(cpu))


def _nets(element: Element) -> Iterator[Element]:
    """Yield a card's ports, without those that NCCL has fused into a virtual one (net="0")."""
    return (net for net in element.iterfind("nic/net") if net.get("net") != "0")


def _nic(net: Element | None, element: Element | None, numa: int | None, address: str | None) -> Nic:
    megabits = _integer(net.get("speed")) if net is not None else None
    return Nic(
        id="",
        name=net.get("name") if net is not None else None,
        kind=_nic_kind(net, element),
        bandwidth=megabits * 1e6 / 8 if megabits is not None and megabits > 0 else None,
        numa=numa,
        bus_id=address,
    )


def _nic_kind(net: Element | None, element: Element | None) -> Literal["infiniband", "roce", "ethernet", "efa"] | None:
    """Tell a card's kind by its PCI ids, and by its port: plain sockets have port 0 and no GUID."""
    vendor, device, pci_class = (
        _digits(element.get(k)) if element is not None else "" for k in ("vendor", "device", "class")
    )
    if vendor == AMAZON and device.startswith("efa"):
        return "efa"
    if pci_class.startswith("0207"):
        return "infiniband"
    if net is None or net.get("port") is None or net.get("guid") is None:
        return None
    if _integer(net.get("port")) == 0 and _integer(net.get("guid")) == 0:
        return "ethernet"
    return "roce" if pci_class.startswith("0200") and (_integer(net.get("port")) or 0) > 0 else None


def _named_once(nics: Iterable[Nic]) -> tuple[Nic, ...]:
    """Call the cards by their names, the nameless NIC0, NIC1, ...; of two with one name the first stays."""
    named: dict[str, Nic] = {}
    nameless = 0
    for nic in nics:
        if nic.name is None:
            named[f"NIC{nameless}"] = structs.replace(nic, id=f"NIC{nameless}")
            nameless += 1
        else:
            named.setdefault(nic.name, structs.replace(nic, id=nic.name))
    return tuple(named.values())


def _host(cpu: Element) -> Host:
    vendor = cpu.get("vendor") or ("ARM" if cpu.get("arch") == "arm64" else None)
    family, model = _integer(cpu.get("familyid")), _integer(cpu.get("modelid"))
    return Host(cpu_vendor=vendor, cpu_family=family, cpu_model_number=model)


def _numa(cpu: Element) -> int | None:
    number = _integer(cpu.get("numaid"))
    return number if number is not None and number >= 0 else None


def _cpus(cpu: Element) -> tuple[int, ...] | None:
    """Read a mask such as "000000ff,ffff0000", groups of 32 processors, the last first; an empty one tells nothing."""
    groups = (cpu.get("affinity") or "").strip().split(",")
    if not all(re.fullmatch("[0-9a-fA-F]{1,8}", group) for group in groups) or len(groups) * 32 > MOST_CPUS:
        return None
    mask = int("".join(group.zfill(8) for group in groups), 16)
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1) or None


def _or_none(elements: list[Element]) -> Sequence[Element | None]:
    return elements or (None,)


def _digits(text: str | None) -> str:
    """Take the hexadecimal digits of 0x10de."""
    return (text or "").strip().lower().removeprefix("0x")


def _integer(text: str | None) -> int | None:
    """Read a decimal or 0x number of at most 16 digits."""
    if text is None or not re.fullmatch(r"-?(0[xX])?[0-9a-fA-F]{1,16}", text.strip()):
        return None
    try:
        return int(text, 16 if "x" in text.lower() else 10)
    except ValueError:
        return None

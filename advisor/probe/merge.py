"""Make one machine of what several sources say of it. The first that knows a fact is believed; others may contradict.

A GPU of two sources is the same if its UUID or its PCI address is, else if its id is: NCCL and CUDA may count fewer
GPUs than `nvidia-smi` does.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

from msgspec import structs

from advisor.rules.hardware import gpu_model
from advisor.rules.machine import Contradiction, Gpu, Link, Machine, NcclLog, Nic, Value

V = TypeVar("V", bound=Value)
Note = Callable[[str, object, object], None]  # (what, first value, second value)

# What changes between two looks at one machine.
VOLATILE = {"memory_used", "memory_available", "shm_free", "throttle", "processes", "generation", "width"}
VOLATILE |= {"utilization", "power", "state", "link_downed", "up", "addresses", "default_route"}
IDENTITY = {"id", "index"}
SAME_SIZE = 0.02  # the share by which two sizes may differ: MiB against bytes, with and without what the driver keeps


def merge(machines: Sequence[Machine]) -> Machine:
    """Merge sources of one machine; `contradictions` says where they differ. The first source's ids stay."""
    first, *others = machines
    for other in others:
        renamed = _renamed(other, first)
        first = _merged(_under_load(first, renamed), renamed)
    return first


def _under_load(one: Machine, two: Machine) -> Machine:
    """Take what changes with the load of a GPU from `two` where it was busier then: an idle link trains down."""
    others = {gpu.id: gpu for gpu in two.gpus}

    def looked_at(gpu: Gpu) -> Gpu:
        other = others.get(gpu.id)
        if other is None or gpu.utilization is None or other.utilization is None:
            return gpu
        if other.utilization <= gpu.utilization:
            return gpu
        pcie = gpu.pcie
        if pcie and other.pcie:
            now = {name: getattr(other.pcie, name) or getattr(pcie, name) for name in ("generation", "width")}
            pcie = structs.replace(pcie, **now)
        return structs.replace(gpu, pcie=pcie, utilization=other.utilization, power=other.power or gpu.power)

    return structs.replace(one, gpus=tuple(looked_at(gpu) for gpu in one.gpus))


def _merged(one: Machine, two: Machine) -> Machine:
    found = [*one.contradictions, *two.contradictions]

    def note(what: str, a: object, b: object) -> None:
        found.append(Contradiction(what=what, sources=(one.source, two.source), values=(str(a), str(b))))

    return structs.replace(
        one,
        gpus=tuple(sorted(_joined(one.gpus, two.gpus, _id, note), key=lambda gpu: gpu.index)),
        nics=_joined(one.nics, two.nics, _id, note),
        links=_links(one.links, two.links, note),
        peer_access=_joined(
            one.peer_access, two.peer_access, lambda access: (access.a, access.b, access.capability), note
        ),
        distances=_joined(one.distances, two.distances, _pair, note),
        pci=one.pci or two.pci,  # two trees of one machine may name their bridges in two ways
        numa_nodes=_joined(one.numa_nodes, two.numa_nodes, _id, note),
        nccl_graphs=one.nccl_graphs or two.nccl_graphs,
        interfaces=_joined(one.interfaces, two.interfaces, lambda interface: interface.name, note),
        nccl_log=_one_log(one.nccl_log, two.nccl_log),
        failed_connections=tuple(dict.fromkeys((*one.failed_connections, *two.failed_connections))),
        kernel_log=tuple(dict.fromkeys((*one.kernel_log, *two.kernel_log))),
        shared_segments=_joined(one.shared_segments, two.shared_segments, lambda segment: segment.name, note),
        host=_filled("host", one.host, two.host, note),
        software=_filled("software", one.software, two.software, note),
        unknown=tuple(dict.fromkeys((*one.unknown, *two.unknown))),
        environment=two.environment | one.environment,
        environment_files=two.environment_files | one.environment_files,
        environment_hidden=two.environment_hidden | one.environment_hidden,
        contradictions=tuple(found),
        source=", ".join(dict.fromkeys((one.source, two.source))),
    )


def _id(value: Any) -> Hashable:
    return value.id  # type: ignore[no-any-return]


def _pair(value: Any) -> frozenset[str]:
    return frozenset((value.a, value.b))


def _joined(one: Iterable[V], two: Iterable[V], key: Callable[[V], Hashable], note: Note) -> tuple[V, ...]:
    """Keep each value of either side; of two with one key the first, with its gaps filled from the second."""
    values = {key(value): value for value in one}
    for value in two:
        there = values.get(key(value))
        values[key(value)] = value if there is None else _filled(_name(value), there, value, note)
    return tuple(values.values())


def _name(value: Any) -> str:
    return f"{value.a}-{value.b}" if hasattr(value, "a") else str(getattr(value, "id", None) or value.name)


def _filled(what: str, value: V, other: V, note: Note) -> V:
    """Take from `other` what `value` lacks, and note what both know and differ in."""
    changes: dict[str, Any] = {}
    for name, new in structs.asdict(other).items():
        old = getattr(value, name)
        if new in (None, (), old):
            continue
        if old is None or old == ():
            changes[name] = new
        elif isinstance(old, Value):
            changes[name] = _filled(f"{what}.{name}", old, new, note)
        elif name not in VOLATILE | IDENTITY and not _agree(name, old, new):
            note(f"{what}.{name}", old, new)
    return structs.replace(value, **changes)


def _agree(field: str, a: Any, b: Any) -> bool:
    """Say whether two ways of printing a fact mean the same."""
    if field == "name":
        model = gpu_model(a)
        same = model is not None and model == gpu_model(b)
        return same or str(a).lower() in str(b).lower() or str(b).lower() in str(a).lower()
    if field in ("uuid", "bus_id", "driver", "cpu"):  # cut, or with fewer digits
        return str(a).startswith(str(b)) or str(b).startswith(str(a))
    if field in ("numa", "cpu_affinity", "cpus"):  # a container, or a line that is cut, shows a part of the list
        one, two = (set(side) if isinstance(side, tuple) else {side} for side in (a, b))
        return one <= two or two <= one
    if field == "nvlinks":
        return sum(link.active is not False for link in a) == sum(link.active is not False for link in b)
    sized = isinstance(a, int | float) and field in ("memory", "bandwidth", "shm")
    return sized and abs(a - b) <= SAME_SIZE * max(a, b)


def _one_log(one: NcclLog | None, two: NcclLog | None) -> NcclLog | None:
    """Put the logs of two ranks or hosts together, or two parts of one."""
    if one is None or two is None:
        return one or two
    devices = None if one.devices is None and two.devices is None else (*(one.devices or ()), *(two.devices or ()))
    return NcclLog(
        version=one.version or two.version,
        interface=one.interface or two.interface,
        network=one.network or two.network,
        provider=one.provider or two.provider,
        devices=None if devices is None else tuple(dict.fromkeys(devices)),
        transports=dict(Counter(one.transports) + Counter(two.transports)),
        variables=two.variables | one.variables,
        warnings=tuple(dict.fromkeys((*one.warnings, *two.warnings))),
        hosts=tuple(dict.fromkeys((*one.hosts, *two.hosts))),
        complete=next((known for known in (one.complete, two.complete) if known is not None), None),
    )


def _links(one: Iterable[Link], two: Iterable[Link], note: Note) -> tuple[Link, ...]:
    """Join links by their pairs. `topo -mp` leaves NVLink out: the PCIe path that it prints contradicts no NVLink."""
    links = {_pair(link): link for link in one}
    for link in two:
        there = links.get(_pair(link))
        if there is None or (_is_pcie(there) and not _is_pcie(link)):
            links[_pair(link)] = link
        elif there.code != link.code and _is_pcie(there) == _is_pcie(link):
            note(f"link {link.a}-{link.b}", there.code, link.code)
    return tuple(links.values())


def _is_pcie(link: Link) -> bool:
    return link.kind not in ("nvlink", "xgmi", "c2c", "network", "host-memory")


def _renamed(machine: Machine, to: Machine) -> Machine:
    """Give the machine's devices the ids that `to` has for them, and new ones to GPUs that `to` lacks."""
    ids = _gpu_ids(machine.gpus, to.gpus)
    ids |= _nic_ids(machine.nics, to.nics)
    gpus = tuple(
        structs.replace(gpu, id=ids[gpu.id], index=int(ids[gpu.id].removeprefix("GPU")))
        if ids[gpu.id] != gpu.id
        else gpu
        for gpu in machine.gpus
    )
    nics: tuple[Nic, ...] = tuple(structs.replace(nic, id=ids.get(nic.id, nic.id)) for nic in machine.nics)
    return structs.replace(
        machine,
        gpus=gpus,
        nics=nics,
        links=_with_ends(machine.links, ids),
        peer_access=_with_ends(machine.peer_access, ids),
        distances=_with_ends(machine.distances, ids),
    )


def _nic_ids(nics: Sequence[Nic], known: Sequence[Nic]) -> dict[str, str]:
    """Return the id of each card that is known by its name; a card in words has none and is any of its kind."""
    names = {nic.name or nic.id: nic.id for nic in known}
    ids = {nic.id: names[nic.name or nic.id] for nic in nics if (nic.name or nic.id) in names}
    nameless = [nic for nic in known if nic.name is None and nic.kind is not None and nic.id not in ids.values()]
    for nic in nics:
        same = next((one for one in nameless if nic.kind in (one.kind, None)), None)
        if nic.id not in ids and nic.name is not None and same is not None:
            ids[nic.id] = same.id
            nameless.remove(same)
    return ids


def _with_ends(values: Iterable[V], ids: Mapping[str, str]) -> tuple[V, ...]:
    return tuple(
        structs.replace(value, a=ids.get(value.a, value.a), b=ids.get(value.b, value.b))  # type: ignore[attr-defined]
        for value in values
    )


def _gpu_ids(gpus: Sequence[Gpu], known: Sequence[Gpu]) -> dict[str, str]:
    """Return each GPU's id among the known ones, or one that none of them has."""
    mine, theirs = _marks(gpus), _marks(known)
    owner = {mark: gpu_id for gpu_id, marks in theirs.items() for mark in marks.items()}
    ids = {gpu: owner[mark] for gpu, marks in mine.items() for mark in reversed(marks.items()) if mark in owner}
    left = set(theirs) - set(ids.values())
    for gpu in mine:
        differ = (
            any(theirs[gpu].get(mark, value) != value for mark, value in mine[gpu].items()) if gpu in left else True
        )
        if gpu not in ids and not differ:
            ids[gpu] = gpu
    taken = set(theirs) | set(ids.values())
    for gpu in mine:
        if gpu not in ids:
            ids[gpu] = gpu if gpu not in taken else next(new for n in count() if (new := f"GPU{n}") not in taken)
            taken.add(ids[gpu])
    return ids


def _marks(gpus: Sequence[Gpu]) -> dict[str, dict[str, str]]:
    """Return what tells each GPU from the others: in a text made anonymous all UUIDs are the same."""
    times = Counter(value for gpu in gpus for value in (gpu.uuid, gpu.bus_id))
    return {
        gpu.id: {
            mark: value
            for mark in ("uuid", "bus_id")
            if (value := getattr(gpu, mark)) is not None and times[value] == 1
        }
        for gpu in gpus
    }

"""What the links of a machine give a training run: islands, the ring, the best few GPUs, NICs, what is shared."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from advisor.report.layout import Column, Grid, labelled, listed, section, sentence, stack
from advisor.report.matrix import STYLES, code_in_words, nearness
from advisor.rules.contention import Shared
from advisor.rules.fabric import Fabric, Ring
from advisor.rules.format import bandwidth, folded, ids, plural, seconds
from advisor.rules.machine import Link, LinkKind, Machine
from advisor.rules.subsets import Subset
from advisor.rules.topology import gpu_links
from advisor.rules.transport import dumped_ring_speed

BETTER = 1.1  # a link that is faster by less is not worth giving GPUs up for
MESH: tuple[LinkKind, ...] = ("nvlink", "xgmi", "c2c")
OVER: dict[LinkKind, str] = {
    "nvlink": "NVLink",
    "xgmi": "XGMI",
    "c2c": "chip to chip",
    "pcie-switch": "one PCIe switch",
    "pcie-switches": "PCIe switches",
    "host-bridge": "one host bridge",
    "numa-node": "one NUMA node",
    "inter-socket": "across NUMA nodes",
    "host-memory": "host memory",
    "network": "network",
}

PEER_STATUS = {  # as `nvidia-smi topo -p2p` explains its codes
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "DR": "disabled by a registry key",
    "NS": "not supported",
    "U": "unknown",
}

Rows = Iterator[tuple[str, RenderableType]]


def fabric_section(machine: Machine, fabric: Fabric) -> RenderableType | None:
    """Describe the fabric: labelled lines, each only where it says something, then the cost of collectives."""
    rows = [
        *(_islands(fabric) if gpu_links(machine) else ()),
        *_ring(machine, fabric),
        *_labelled_once("peer access", _peer_access(machine)),
        *_labelled_once("nearest NIC", _nics(machine, fabric)),
        *_best(machine, fabric),
        *_labelled_once("shared", _shared(fabric)),
        *_labelled_once("uneven", (sentence(uneven.message) for uneven in fabric.uneven)),
    ]
    costs = _collectives(fabric, len(machine.gpus) * machine.nodes)
    if not rows and costs is None:
        return None
    return section("What the links give", stack(labelled(rows) if rows else None, costs))


def _labelled_once(label: str, lines: Iterator[Text]) -> Rows:
    for number, line in enumerate(lines):
        yield "" if number else label, line


def _islands(fabric: Fabric) -> Rows:
    """Name the islands, and where there are islands of islands each level of them."""
    levels = [level for level in fabric.levels if len(level.islands) > 1]
    if len(levels) > 1:
        lines = (Text(f"{OVER[level.kind]}: ") + listed(map(ids, level.islands), "  ") for level in levels)
        yield from _labelled_once("islands", lines)
    elif fabric.islands:
        yield "islands" if len(fabric.islands) > 1 else "island", listed(map(ids, fabric.islands), "  ")


def _ring(machine: Machine, fabric: Fabric) -> Rows:
    if fabric.slowest_link is None:  # one GPU, or a ring over links of which nothing is known
        return
    yield "slowest link", _slowest(fabric.slowest_link)
    if fabric.ring is not None:
        speed = ring_speed_in_words(machine, fabric.ring)
        yield "ring", sentence(": ".join(part for part in (speed, " ".join(fabric.ring.order)) if part))


def ring_speed_in_words(machine: Machine, ring: Ring) -> str:
    """Say what the ring should move and who says so; nothing where that is unknown."""
    source = "NCCL's model" if dumped_ring_speed(machine, ring.order) is None else "NCCL's graph dump"
    return f"{bandwidth(ring.bandwidth)} by {source}" if ring.bandwidth else ""


def _slowest(link: Link) -> Text:
    speed = "" if link.bandwidth is None else f", {bandwidth(link.bandwidth)}"
    source = "" if link.bandwidth_source is None else f" ({link.bandwidth_source})"
    words = sentence(f": {code_in_words(link.code, link.kind)}{speed}{source}")
    return Text.assemble(f"{link.a} - {link.b}  ", (link.code, STYLES[link.kind]), words)


def _peer_access(machine: Machine) -> Iterator[Text]:
    """Say what the driver answers for the pairs of GPUs, once for all capabilities that it answers alike."""
    answers: dict[str, dict[str, dict[str, None]]] = {}  # capability -> status -> pairs
    for access in machine.peer_access:
        pair = "-".join(sorted((access.a, access.b)))
        answers.setdefault(access.capability, {}).setdefault(access.status, {})[pair] = None
    for statuses, same in folded(answers.values(), repr):
        capabilities = ", ".join(name for name, own in answers.items() if own in same)
        for status, pairs in statuses.items():
            between = "all GPUs" if len(statuses) == 1 else ", ".join(pairs)
            yield sentence(f"{capabilities} between {between}: {PEER_STATUS.get(status, status)}")


def _best(machine: Machine, fabric: Fabric) -> Rows:
    """Name the largest groups whose ring has better links, and is faster, than the ring over more GPUs."""
    costs = {group.gpus: group.collectives for group in fabric.groups}
    speeds = {gpus: cost["all_reduce"].bus_bandwidth for gpus, cost in costs.items() if "all_reduce" in cost}
    last: Subset | None = None
    for subset in reversed(fabric.subsets):
        if subset.code is None or subset.kind is None:  # a link of its ring was lost, so nothing is known to be better
            return
        speed = speeds.get(subset.gpus)
        if last is None:
            last = subset
        elif _is_better(subset, last) and (speed is None or speed > BETTER * speeds.get(last.gpus, 0.0)):
            last = subset
            words = "" if speed is None else f", all_reduce at {bandwidth(speed)}"
            gpus = Text.assemble(f"{ids(subset.gpus)}  ", (subset.code, STYLES[subset.kind]), sentence(words))
            yield f"best {len(subset.gpus)} of {len(machine.gpus)}", gpus


def _is_better(subset: Subset, other: Subset) -> bool:
    if subset.bandwidth is not None and other.bandwidth is not None:
        return subset.bandwidth > BETTER * other.bandwidth
    return subset.kind is not None and other.kind is not None and nearness(subset.kind) < nearness(other.kind)


def _nics(machine: Machine, fabric: Fabric) -> Iterator[Text]:
    if len(machine.gpus) < 2:
        return
    for near, same in folded(fabric.nics, lambda near: near.kind):
        served = [f"{ids([n.gpu for n in gpus])} {ids(n.nics)}" for n, gpus in folded(same, lambda near: near.nics)]
        yield Text.assemble((f"{OVER[near.kind]}: ", STYLES[near.kind]), listed(served))


def _shared(fabric: Fabric) -> Iterator[Text]:
    """Say how fast what several GPUs share is, where their ring needs it."""
    if fabric.slowest_link is None or fabric.slowest_link.kind in MESH:
        return
    known = [shared for shared in fabric.shared if shared.bandwidth is not None]
    for shared, same in folded(known, lambda shared: (shared.kind, shared.bandwidth)):
        groups = " ".join(f"{ids(one.gpus)}," for one in same).rstrip(",")
        yield sentence(f"{_what(shared)}, {bandwidth(shared.bandwidth)}: {groups}{' each' if len(same) > 1 else ''}")


def _what(shared: Shared) -> str:
    return shared.name if shared.kind == "inter-socket" else f"{shared.name} to the host"


def _collectives(fabric: Fabric, gpus: int) -> RenderableType | None:
    if not fabric.collectives:
        return None
    columns = [
        Column(f"over {plural(gpus, 'GPU')}"),
        Column("latency", "right"),
        Column("bus bandwidth", "right"),
        Column("source"),
    ]
    rows = [
        (name, seconds(cost.latency), bandwidth(cost.bus_bandwidth), cost.source)
        for name, cost in fabric.collectives.items()
    ]
    return Grid(columns, rows)

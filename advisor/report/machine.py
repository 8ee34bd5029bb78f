"""A machine as text: what `advisor probe` shows."""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from advisor.report.fabric import fabric_section
from advisor.report.findings import findings_section
from advisor.report.host import host_in_short, host_section
from advisor.report.layout import (
    Column,
    Command,
    Grid,
    Row,
    labelled,
    one_line,
    prose,
    section,
    stack,
)
from advisor.report.matrix import STYLES, Matrix, lanes, nearness
from advisor.rules.fabric import Fabric
from advisor.rules.format import (
    UNKNOWN,
    bandwidth,
    binary,
    cpu_list,
    folded,
    ids,
    memory,
    plural,
)
from advisor.rules.machine import LIVE, Gpu, Link, Machine, Pcie
from advisor.rules.plan import Finding

BUSY = 0.02  # a GPU's memory in use is worth a column above this share


def machine_report(
    machine: Machine,
    fabric: Fabric | None,
    findings: Sequence[Finding] = (),
    *,
    again: str,
    measured: RenderableType | None = None,
) -> RenderableType:
    """Describe a machine: verdict, GPUs, links, fabric, host, software, what is unknown, findings.

    `again` is the command that gives this answer once more, `measured` the section on measured links.
    """
    return stack(
        prose(machine_headline(machine, fabric), "bold"),
        _gpus(machine),
        _nics(machine),
        _links(machine),
        fabric_section(machine, fabric) if fabric is not None and len(machine.gpus) * machine.nodes > 1 else None,
        measured,
        host_section(machine),
        _unknown(machine),
        findings_section(findings),
        _again(again),
    )


def machine_verdict(machine: Machine, fabric: Fabric | None) -> Text:
    """Say in one line what the machine is."""
    return one_line(Text(machine_headline(machine, fabric)))


def machine_headline(machine: Machine, fabric: Fabric | None) -> str:
    """Name the GPUs, how they are linked, and the ring: `8x NVIDIA H100, all pairs NV18, one island; ring 370 GB/s`."""
    if not machine.gpus:
        return f"No GPU: {host_in_short(machine.host)}"
    models = folded(machine.gpus, lambda gpu: gpu.name)
    head = " + ".join(f"{len(same)}x {gpu.name}" if gpu.name else _unnamed(len(same)) for gpu, same in models)
    inside = ", ".join([*_links_in_short(machine), *_islands_in_short(fabric)])
    ring = f"ring {bandwidth(fabric.ring.bandwidth)}" if fabric and fabric.ring and fabric.ring.bandwidth else ""
    if machine.nodes == 1:
        return "; ".join(part for part in (f"{head}, {inside}" if inside else head, ring) if part)
    hosts = f"{machine.nodes} hosts of {head} ({machine.nodes * len(machine.gpus)} GPUs)"
    within = ", ".join(part for part in (inside, ring) if part)
    return "; ".join(part for part in (hosts, f"in each {within}" if within else "", _network(machine)) if part)


def _network(machine: Machine) -> str:
    speeds = [nic.bandwidth for nic in machine.nics]
    known = [speed for speed in speeds if speed is not None]
    return f"network {bandwidth(sum(known))} per host" if known and len(known) == len(speeds) else ""


def _unnamed(gpus: int) -> str:
    return f"{plural(gpus, 'GPU')} of unknown model"


def _links_in_short(machine: Machine) -> Iterator[str]:
    gpus = {gpu.id for gpu in machine.gpus}
    if len(gpus) < 2:
        return
    between = [link for link in machine.links if link.a in gpus and link.b in gpus]
    codes = sorted({link.code for link in between}, key=lambda code: _rank_of(code, between))
    if not codes:
        yield "links unknown"
    elif all(STYLES[link.kind] != STYLES["nvlink"] for link in between):
        yield f"no NVLink ({', '.join(codes)})"
    elif len(codes) == 1 and len(between) == len(gpus) * (len(gpus) - 1) // 2:
        yield f"linked by {codes[0]}" if len(gpus) == 2 else f"all pairs {codes[0]}"
    else:
        yield f"links {', '.join(codes)}"


def _rank_of(code: str, links: Iterable[Link]) -> tuple[int, int]:
    return min(nearness(link.kind) for link in links if link.code == code), -lanes(code)


def _islands_in_short(fabric: Fabric | None) -> Iterator[str]:
    if fabric is None or len(fabric.islands) == 0:
        return
    sizes = sorted({len(island) for island in fabric.islands}, reverse=True)
    if sizes == [1]:
        return
    if len(fabric.islands) == 1:
        yield "one island"
    elif len(sizes) == 1:
        yield f"{len(fabric.islands)} islands of {sizes[0]}"
    else:
        yield f"islands of {', '.join(str(len(island)) for island in fabric.islands)}"


def _gpus(machine: Machine) -> RenderableType | None:
    if not machine.gpus:
        return None
    names, sizes = {gpu.name for gpu in machine.gpus}, {gpu.memory for gpu in machine.gpus}
    columns = [
        Column(""),
        Column("name", folds=True),
        Column("memory"),
        Column("in use"),
        Column("sm"),
        Column("PCIe"),
        Column("NUMA"),
        Column("CPUs", folds=True),
    ]
    rows = [
        Row(
            (
                ids([gpu.id for gpu in same]),
                first.name or UNKNOWN,
                UNKNOWN if first.memory is None else f"{memory(first.memory)} ({binary(first.memory)})",
                _in_use(same) if any(map(_busy, machine.gpus)) else UNKNOWN,
                first.compute_capability or UNKNOWN,
                _pcie(first.pcie),
                _numa(first.numa),
                UNKNOWN if first.cpu_affinity is None else cpu_list(first.cpu_affinity),
            )
        )
        for first, same in folded(machine.gpus, _looks)
    ]
    table = Grid(columns, rows).without_empty(UNKNOWN)
    blocks: list[RenderableType] = [table] if len(table.columns) > 1 else []
    unknown = [what for what, facts in (("model", names), ("memory", sizes)) if None in facts]
    if unknown and machine.source != LIVE:
        blocks.append(prose(f"{' and '.join(unknown)} not known: add --gpu NAME, for example --gpu a10g"))
    return section("GPUs" if machine.nodes == 1 else "GPUs of each host", *blocks)


def _looks(gpu: Gpu) -> tuple[object, ...]:
    return gpu.name, gpu.memory, gpu.compute_capability, gpu.pcie, gpu.numa, gpu.cpu_affinity


def _busy(gpu: Gpu) -> bool:
    """Say whether more memory is taken than an idle driver takes."""
    return gpu.memory is not None and gpu.memory_used is not None and gpu.memory_used > BUSY * gpu.memory


def _in_use(gpus: Sequence[Gpu]) -> str:
    used = [gpu.memory_used for gpu in gpus if gpu.memory_used is not None]
    return memory(max(used)) if used else UNKNOWN


def _pcie(pcie: Pcie | None) -> str:
    if pcie is None:
        return UNKNOWN
    generation, width = pcie.generation_max or pcie.generation, pcie.width_max or pcie.width
    if generation is None and width is None:
        return UNKNOWN
    narrow = f" (x{pcie.width} used)" if pcie.width and pcie.width != width else ""
    return f"gen{generation or UNKNOWN} x{width or UNKNOWN}{narrow}"


def _numa(numa: int | tuple[int, ...] | None) -> str:
    if numa is None:
        return UNKNOWN
    return str(numa) if isinstance(numa, int) else cpu_list(numa)


def _nics(machine: Machine) -> RenderableType | None:
    columns = [Column(""), Column("name", folds=True), Column("kind"), Column("bandwidth"), Column("NUMA")]
    rows = [
        Row(
            (
                ids([nic.id for nic in same]),
                ids([nic.name for nic in same if nic.name and nic.name != nic.id]) or UNKNOWN,
                first.kind or UNKNOWN,
                bandwidth(first.bandwidth),
                _numa(first.numa),
            )
        )
        for first, same in folded(machine.nics, lambda nic: (nic.kind, nic.bandwidth, nic.numa))
    ]
    table = Grid(columns, rows).without_empty(UNKNOWN)
    title = "NICs" if machine.nodes == 1 else "NICs of each host"
    return section(title, table) if len(table.columns) > 1 else None


def _links(machine: Machine) -> RenderableType | None:
    gpus = {gpu.id for gpu in machine.gpus}
    if not any(link.a in gpus or link.b in gpus for link in machine.links):
        return None
    title = "Links" if machine.nodes == 1 else "Links within each host"
    return section(title, Matrix(machine))


def _unknown(machine: Machine) -> RenderableType | None:
    if not machine.unknown:
        return None
    return section("Not known", labelled([(unknown.what, unknown.why) for unknown in machine.unknown]))


def _again(again: str) -> RenderableType:
    return section(
        "The same again, anywhere",
        Command(f"{again} -o machine.json"),
        Command("advisor recommend --params 13e9 --machine machine.json"),
    )

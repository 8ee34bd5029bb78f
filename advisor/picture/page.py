"""A machine as one HTML page: the picture, then its links and facts as tables. It needs no script and no other file."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from advisor.picture.devices import NETWORKS, slot_in_words
from advisor.report.fabric import ring_speed_in_words
from advisor.report.matrix import code_in_words, nearness
from advisor.rules.fabric import Fabric
from advisor.rules.format import bandwidth, binary, folded, ids, memory, plural, seconds
from advisor.rules.links import nvlink_count
from advisor.rules.machine import Gpu, Link, Machine
from advisor.rules.plan import Finding
from advisor.rules.topology import gpu_links

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #ffffff; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
figure { margin: 0; overflow-x: auto; }
figure svg { width: 100%; height: auto; min-width: 40rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .2rem .9rem .2rem 0; vertical-align: top; }
th { font-weight: 600; } tr + tr td { border-top: 1px solid #dddddd; } .codes td { font-family: monospace; }
.quiet { color: #555555; }
@media (prefers-color-scheme: dark) {
  body { color: #e6e6e6; background: #16181b; } tr + tr td { border-color: #3a3d42; } .quiet { color: #a8a8a8; }
  .topology .paper, .topology .host { fill: #16181b; } .topology .host { stroke: #9a9a9a; }
  .topology .numa-node { fill: #202327; } .topology .host-bridge { fill: #2b2818; }
  .topology .pcie-switch, .topology .pcie-switches { fill: #1a2a36; }
  .topology .gpu { fill: #0e4a38; stroke: #4cc9a0; } .topology .nic { fill: #16181b; stroke: #5bb0e8; }
  .topology .fabric, .topology .mesh { fill: #12382c; } .topology .socket { fill: #3a2331; }
  .topology .net { fill: #14303f; } .topology .network { stroke: #5bb0e8; }
  .topology .inter-socket, .topology .socket { stroke: #d58ab4; }
  .topology .ink { fill: #e6e6e6; } .topology .faint { fill: #a8a8a8; } .topology .strong { fill: #ff9a5c; }
  .topology .slowest { stroke: #ff7a33; } .topology .casing { stroke: #e6e6e6; }
}
.topology .bare { stroke: none; }
"""


class Table(NamedTuple):
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    css: str = ""


def page_of(machine: Machine, fabric: Fabric, findings: Sequence[Finding], *, title: str, svg: str) -> str:
    """Write the page around the drawn picture."""
    inline = svg[svg.index("<svg") :]
    tables = (*_devices(machine), *_links(machine), *_fabric(machine, fabric), *_facts(machine, findings))
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="quiet">Source: {escape(machine.source)}</p>',
        f"<figure>{inline}</figure>",
        *(_html(table) for table in tables if table.rows),
        "</body></html>",
    ]
    return "\n".join([*parts, ""])


def _devices(machine: Machine) -> Iterator[Table]:
    hosts = "" if machine.nodes == 1 else " of each host"
    rows = [
        (
            ids([gpu.id for gpu in same]),
            gpu.name or "",
            f"{memory(gpu.memory)} ({binary(gpu.memory)})" if gpu.memory else "",
            slot_in_words(gpu.pcie),
            _numa(gpu),
        )
        for gpu, same in folded(machine.gpus, lambda gpu: (gpu.name, gpu.memory, gpu.pcie, gpu.numa))
    ]
    yield Table(f"GPUs{hosts}", ("", "name", "memory", "PCIe", "NUMA node"), rows)
    nics = [
        (
            ids([nic.id for nic in same]),
            ids([nic.name for nic in same if nic.name and nic.name != nic.id]),
            NETWORKS[nic.kind] if nic.kind else "",
            bandwidth(nic.bandwidth) if nic.bandwidth else "",
        )
        for nic, same in folded(machine.nics, lambda nic: (nic.kind, nic.bandwidth))
    ]
    yield Table(f"NICs{hosts}", ("", "device", "kind", "bandwidth"), nics)


def _links(machine: Machine) -> Iterator[Table]:
    ordered = sorted(machine.links, key=lambda link: (nearness(link.kind), -nvlink_count(link.code)))
    rows = [
        (
            link.code,
            code_in_words(link.code, link.kind),
            plural(len(same), "pair"),
            bandwidth(link.bandwidth) if link.bandwidth else "not known",
            link.bandwidth_source or "",
        )
        for link, same in folded(ordered, lambda link: (link.code, link.kind, link.bandwidth, link.bandwidth_source))
    ]
    yield Table("Links", ("code", "what it is", "", "one pair, one direction", "from"), rows)
    codes = {(link.a, link.b): link.code for link in machine.links}
    codes |= {(b, a): code for (a, b), code in codes.items()}
    gpus = [gpu.id for gpu in machine.gpus]
    columns = [device for device in (*gpus, *(nic.id for nic in machine.nics)) if _linked(device, machine.links)]
    matrix = [(gpu, *("X" if gpu == c else codes.get((gpu, c), "") for c in columns)) for gpu in gpus if columns]
    yield Table("Every pair", ("", *columns), matrix, css="codes")


def _fabric(machine: Machine, fabric: Fabric) -> Iterator[Table]:
    rows = [("islands", "; ".join(ids(island) for island in fabric.islands))] if gpu_links(machine) else []
    if fabric.slowest_link is not None:
        link = fabric.slowest_link
        speed = f", {bandwidth(link.bandwidth)} ({link.bandwidth_source})" if link.bandwidth else ""
        rows.append(("slowest link of the best ring", f"{link.a} - {link.b}, {link.code}{speed}"))
    if fabric.ring is not None and fabric.slowest_link is not None:
        speed = ring_speed_in_words(machine, fabric.ring)
        rows.append(("best ring", " ".join(fabric.ring.order) + (f" ({speed})" if speed else "")))
    yield Table("What the links give", ("", ""), rows)
    costs = [
        (op, seconds(cost.latency), bandwidth(cost.bus_bandwidth), cost.source)
        for op, cost in fabric.collectives.items()
    ]
    over = f"Collectives over {plural(len(machine.gpus) * machine.nodes, 'GPU')}"
    yield Table(over, ("", "latency", "bus bandwidth", "from"), costs)


def _facts(machine: Machine, findings: Sequence[Finding]) -> Iterator[Table]:
    host, software = machine.host, machine.software
    facts = (
        ("hosts", f"{machine.nodes:,}" if machine.nodes > 1 else None),
        ("processor", host.cpu),
        ("sockets", host.sockets),
        ("NUMA nodes", host.numa_nodes),
        ("usable CPUs", host.cpus),
        ("memory", memory(host.memory) if host.memory else None),
        ("system", host.os),
        ("driver", software.driver),
        ("CUDA, newest", software.cuda_driver),
        ("torch", software.torch),
        ("NCCL", software.nccl),
        *sorted(machine.environment.items()),
    )
    yield Table("Host", ("", ""), [(name, str(value)) for name, value in facts if value is not None])
    found = [(finding.severity, finding.code, finding.message, finding.remedy) for finding in findings]
    yield Table("Findings", ("", "code", "what", "what to do"), found)
    yield Table("Not known", ("what", "why"), [(entry.what, entry.why) for entry in machine.unknown])


def _html(table: Table) -> str:
    head = f"<tr>{_cells('th', table.head)}</tr>" if any(table.head) else ""
    rows = "".join(f"<tr>{_cells('td', row)}</tr>" for row in table.rows)
    css = f' class="{table.css}"' if table.css else ""
    return f'<h2>{escape(table.title)}</h2>\n<div class="scroll"><table{css}>{head}{rows}</table></div>'


def _cells(tag: str, texts: Iterable[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


def _numa(gpu: Gpu) -> str:
    if gpu.numa is None:
        return ""
    return str(gpu.numa) if isinstance(gpu.numa, int) else ", ".join(map(str, gpu.numa))


def _linked(device: str, links: Iterable[Link]) -> bool:
    return any(device in (link.a, link.b) for link in links)

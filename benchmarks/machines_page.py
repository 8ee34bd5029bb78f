"""Write docs/machines.md: real machines, their picture, islands, slowest link and all-reduce beside published values.

Run: python benchmarks/machines_page.py [ROW_FILE]. Pictures are made by `advisor probe -o docs/machines/NAME.svg`.
"""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from collectives import (
    H200_PAIR,
    LARGE,
    PUBLISHED,
    ROOT,
    Row,
    machine_errors,
    machine_of,
    predicted,
    rows_of,
    summary,
)

from advisor.rules.fabric import Fabric, fabric_of
from advisor.rules.format import bandwidth
from advisor.rules.machine import Link, Machine

PAGE = ROOT / "docs/machines.md"
PICTURES = ROOT / "docs/machines"
SIZES = (LARGE, 4 * LARGE, 16 * LARGE)  # bytes: 64 MiB, 256 MiB, 1 GiB


class Shown(NamedTuple):
    """A machine with a section of its own."""

    name: str  # of its picture
    title: str
    source: str
    cpu: str | None = None


MACHINES = (
    Shown("2xh200", "Two H200, NVLink", str(H200_PAIR)),
    Shown("8xv100-dgx1", "DGX-1 with V100, AWS p3.16xlarge: cube mesh", "8x v100 mesh"),
    Shown("8xa100-nvswitch", "DGX A100, Azure ND A100 v4: NVSwitch", "8x a100 nvswitch"),
    Shown("8xh100-nvswitch", "DGX H100, Azure ND H100 v5: NVSwitch with multicast", "8x h100 nvswitch"),
    Shown("8xb200-nvswitch", "DGX B200, AWS p6-b200: NVSwitch with multicast", "8x b200 nvswitch"),
    Shown("2xh100-pcie-bridge", "Two H100 PCIe with NVLink bridges", "2x h100 pcie bridge"),
    Shown("4x5090", "Four RTX 5090 on EPYC Genoa", "4x 5090", "AMD EPYC (Genoa)"),
    Shown("8x5090", "Eight RTX 5090 on two Xeon 8480+", "8x 5090, 2 sockets", "Intel Xeon Platinum 8480+"),
    Shown("8x4090", "Eight RTX 4090 on two EPYC 7542", "8x 4090 pcie4, 2 sockets", "AMD EPYC 7542 32-Core Processor"),
    Shown("2x2080ti-switch", "Two RTX 2080 Ti below one PCIe switch", "2x 2080 ti pcie3 switch"),
    Shown("4xa10g", "Four A10G, AWS g5.12xlarge", "4x a10g pcie3x8"),
    Shown("2x3090-bridge", "Two RTX 3090 with an NVLink bridge", "2x 3090 bridge"),
    Shown("8xmi300x", "Eight MI300X, Infinity Fabric", "8x mi300x"),
    Shown("2x8xa100-efa", "Two AWS p4de.24xlarge", "2x8 a100 80gb nvswitch, efa 4x100"),
    Shown("2x8xh100-ib", "Two nodes of eight H100, InfiniBand 8x400", "2x8 h100 nvswitch, ib 8x400"),
)

INTRODUCTION = """# Machines

What `advisor probe --machine ...` says of real machines, and what others measured on them. Predictions come from data
sheets and the constants of `rules/nccl.py` and `rules/transport.py`; nothing here was measured on the machine itself,
except on the two H200. Bus bandwidth as [nccl-tests](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)
defines it. This page is written by

    python benchmarks/machines_page.py
"""

FAR_OFF = """Far off, and why, as far as is known:

- Four RTX 4090 whose IOMMU translates every access: 2 GB/s. No source that `probe` reads tells of it beforehand.
- Two H100 PCIe with bridges at half of what their 12 links should carry; the page does not show how many are up.
- A ring over a bridged pair of A100 and a third: only one of three GPUs has no NVLink, which the model does not use.
- Two nodes of A100 with four adapters, where NCCL seems to have kept its ring; a tree would have been faster.
- Several nodes at 64 to 256 MiB, most of all over EFA: NCCL's latencies, which the model takes, are too short for them.
"""


def page(rows: list[Row]) -> str:
    large = [row for row in rows if row.large]
    sections = [INTRODUCTION, _accuracy(large), *(_section(shown, large) for shown in MACHINES), _all(large)]
    return "\n".join(sections)


def _accuracy(rows: list[Row]) -> str:
    lines = [
        "## How far off the predictions are",
        "",
        "Absolute error of bus bandwidth, messages of 64 MiB and more. Held out are the rows on which no constant was",
        "chosen. Pages list unequal numbers of sizes, so the last rows take one error, the median, for each machine of",
        "each page.",
        "",
        "| what decides | rows | median | 9 in 10 below |",
        "|---|---|---|---|",
    ]
    kinds = dict.fromkeys(row.kind for row in rows)
    groups = [(kind, [row for row in rows if row.kind == kind]) for kind in kinds]
    groups += [("**held out**", [row for row in rows if not row.fit]), ("**all**", rows)]
    for name, members in groups:
        found = summary(members)
        lines.append(f"| {name} | {found['rows']} | {found['median_pct']} % | {found['p90_pct']} % |")
    for name, members in groups[-2:]:
        errors = machine_errors(members)
        lines.append(f"| {name}, each machine once | {len(errors)} | {median(errors):.1f} % | |")
    return "\n".join([*lines, "", FAR_OFF])


def _section(shown: Shown, rows: list[Row]) -> str:
    machine = machine_of(shown.source, shown.cpu)
    fabric = fabric_of(machine)
    lines = [f"## {shown.title}", "", f"`{_words(shown)}`", ""]
    if _draw(shown):
        lines += [f"![{shown.title}](machines/{shown.name}.svg)", ""]
    lines += [
        f"- Islands: {_islands(fabric)}",
        f"- Slowest link of the best ring: {_slowest(machine, fabric.slowest_link)}",
        "",
        "| all-reduce of | predicted | published | error | where |",
        "|---|---|---|---|---|",
        *_comparison(shown, machine, rows),
        "",
    ]
    return "\n".join(lines)


def _words(shown: Shown) -> str:
    source = Path(shown.source).relative_to(ROOT) if Path(shown.source).is_absolute() else f"'{shown.source}'"
    return f"advisor probe --machine {source}"


def _draw(shown: Shown) -> bool:
    """Draw the machine with the command that a user would type; say whether there is a picture now."""
    picture = PICTURES / f"{shown.name}.svg"
    PICTURES.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "advisor", "probe", "--machine", shown.source, "-o", str(picture)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    return picture.exists()


def _islands(fabric: Fabric) -> str:
    if len(fabric.islands) == 1:
        return f"all {len(fabric.islands[0])} GPUs"
    return "; ".join(", ".join(island) for island in fabric.islands)


def _slowest(machine: Machine, link: Link | None) -> str:
    if machine.nodes > 1:
        adapters = ", ".join(sorted({f"{nic.kind} {bandwidth(nic.bandwidth)}" for nic in machine.nics}))
        return f"the network, {len(machine.nics)} adapters a node ({adapters})"
    if link is None:
        return "none"
    return f"{link.a}-{link.b}, {link.code}, {bandwidth(link.bandwidth)} by {link.bandwidth_source}"


def _comparison(shown: Shown, machine: Machine, rows: Iterable[Row]) -> Iterator[str]:
    """Yield a line for each published all-reduce over the whole machine, and for the usual sizes without one."""
    mine = [
        row
        for row in rows
        if Path(row.machine).name == Path(shown.source).name
        and (row.cpu, row.op, row.gpus) == (shown.cpu, "all_reduce", len(machine.gpus))
    ]
    for size in sorted({*SIZES, *(row.size for row in mine)}):
        found = [row for row in mine if row.size == size]
        for row in found:
            yield f"| {_size(row)} | {_compared(row)} | {_link(row)} |"
        if not found:
            alone = Row(
                shown.source, len(machine.gpus), machine.nodes, "all_reduce", size, 0.0, {}, "", False, cpu=shown.cpu
            )
            yield f"| {_size(alone)} | {bandwidth(predicted(alone))} | | | |"


def _all(rows: Iterable[Row]) -> str:
    lines = [
        "## All rows",
        "",
        "`benchmarks/data/published-collectives.jsonl`; `python benchmarks/collectives.py` prints all sizes.",
        "",
        "| machine | GPUs | operation | bytes | predicted | measured | error | where |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        name = Path(row.machine).stem if row.machine.endswith(".json") else row.machine
        lines.append(f"| {name} | {row.gpus * row.nodes} | {row.op} | {_size(row)} | {_compared(row)} | {_link(row)} |")
    return "\n".join([*lines, ""])


def _size(row: Row) -> str:
    amount = f"{row.size >> 30} GiB" if row.size >= 2**30 else f"{row.size >> 20} MiB"
    settings = " ".join(f"`{name}={value}`" for name, value in row.environment.items())
    return f"{amount}, {settings}" if settings else amount


def _compared(row: Row) -> str:
    value = predicted(row)
    return f"{bandwidth(value)} | {bandwidth(row.measured)} | {100 * (value / row.measured - 1):+.0f} %"


def _link(row: Row) -> str:
    place = f"[{'/'.join(row.source.split('/')[2:5])}]({row.source})" if "://" in row.source else row.source
    return f"{place} (fit)" if row.fit else place


def main() -> None:
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else PUBLISHED
    PAGE.write_text(page(list(rows_of(file, str(H200_PAIR)))))
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()

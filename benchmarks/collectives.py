"""Compare predicted bus bandwidths of collectives with published and measured ones.

Run: python benchmarks/collectives.py [--machine SOURCE] [FILE...]: JSON lines. A row with a `machine` (a description,
or a file relative to the row's own) is of the form of data/published-collectives.jsonl. Rows of `kind` comm are of the
pair of GPUs that --machine gives, and `transport` says what was switched off. The last line is a JSON object about rows
of 64 MiB and more; errors are absolute percentages of the measured value.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from msgspec.structs import replace

from advisor.probe.load import load_machine
from advisor.rules.fabric import Op, bus_factor, collective_seconds, collectives_of
from advisor.rules.links import with_link_bandwidths
from advisor.rules.machine import Machine

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "benchmarks/data/published-collectives.jsonl"
H200_PAIR = ROOT / "fixtures/machines/2xh200-nv18.json"
LARGE = 64 * 2**20  # bytes

TRANSPORTS = {
    "nvlink": {},
    "shm": {"NCCL_P2P_DISABLE": "1"},
    "socket": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
}
MODELLED = {"NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"}  # further settings that the model knows


class Row(NamedTuple):
    """One measured collective."""

    machine: str  # for `load_machine`
    gpus: int  # of each node
    nodes: int
    op: Op
    size: int  # bytes of the larger buffer
    measured: float  # bytes per second, bus bandwidth as nccl-tests defines it
    environment: dict[str, str]
    kind: str  # of the links that decide
    fit: bool  # a constant of the model was chosen on it
    source: str = ""
    cpu: str | None = None

    @property
    def large(self) -> bool:
        return self.size >= LARGE


def rows_of(file: Path, machine: str) -> Iterator[Row]:
    for line in file.read_text().splitlines():
        fields = json.loads(line)
        if "machine" in fields:
            yield _published(fields, file)
        elif fields.get("kind") == "comm" and {setting.split("=")[0] for setting in fields["env"]} <= MODELLED:
            yield _measured(fields, machine)


def _published(fields: dict[str, Any], file: Path) -> Row:
    beside = file.parent / fields["machine"]
    return Row(
        machine=str(beside) if fields["machine"].endswith(".json") else fields["machine"],
        gpus=fields["gpus"],
        nodes=fields["nodes"],
        op=fields["op"],
        size=fields["bytes"],
        measured=fields["bus_bandwidth"],
        environment=fields["environment"],
        kind=fields["class"],
        fit=fields["fit"],
        source=fields["source"],
        cpu=fields.get("cpu"),
    )


def _measured(fields: dict[str, Any], machine: str) -> Row:
    settings = dict(setting.split("=", 1) for setting in fields["env"])
    return Row(
        machine=machine,
        gpus=2,
        nodes=1,
        op=fields["op"],
        size=fields["bytes"],
        measured=fields["busbw"] * 1e9,
        environment=TRANSPORTS[fields["transport"]] | settings,
        kind=fields["transport"],
        fit=False,
    )


def predicted(row: Row) -> float:
    """Return the bus bandwidth that the model gives at the row's size, bytes per second."""
    machine = replace(machine_of(row.machine, row.cpu), environment=row.environment)
    gpus = tuple(gpu.id for gpu in machine.gpus)[: row.gpus]
    cost = collectives_of(machine, gpus, nodes=row.nodes)[row.op]
    ranks = row.gpus * row.nodes
    return bus_factor(row.op, ranks) * row.size / collective_seconds(cost, row.op, row.size, ranks)


@cache
def machine_of(source: str, cpu: str | None) -> Machine:
    """Load a machine, and add the CPU that the row names but words cannot."""
    machine = load_machine(source)
    if cpu is None:
        return machine
    vendor = "AuthenticAMD" if "AMD" in cpu else "GenuineIntel"
    links = (replace(k, bandwidth=None) if k.bandwidth_source == "assumed" else k for k in machine.links)
    host = replace(machine.host, cpu=cpu, cpu_vendor=vendor)
    return with_link_bandwidths(replace(machine, host=host, links=tuple(links)))


def error(row: Row) -> float:
    """Return the absolute error in percent of the measured value."""
    return 100 * abs(predicted(row) / row.measured - 1)


def machine_errors(rows: Iterable[Row]) -> list[float]:
    """Return one error for each machine, group and page: the median of its rows."""
    groups = defaultdict(list)
    for row in rows:
        groups[row.machine, row.cpu, row.gpus, row.op, tuple(row.environment.items()), row.source].append(error(row))
    return [median(errors) for errors in groups.values()]


def summary(rows: Iterable[Row]) -> dict[str, float]:
    errors = [error(row) for row in rows]
    if not errors:
        return {"rows": 0}
    p90 = quantiles(errors, n=10, method="inclusive")[-1] if len(errors) > 1 else errors[0]
    return {"rows": len(errors), "median_pct": round(median(errors), 1), "p90_pct": round(p90, 1)}


def _print_rows(rows: Iterable[Row]) -> None:
    for row in rows:
        value = predicted(row)
        name = Path(row.machine).stem if row.machine.endswith(".json") else row.machine
        settings = " ".join(f"{key}={setting}" for key, setting in row.environment.items())
        print(
            f"{name:38} {row.gpus * row.nodes:3} {row.op:14} {row.size / 2**20:8.1f} MiB {value / 1e9:7.2f} "
            f"{row.measured / 1e9:7.2f} GB/s {100 * (value / row.measured - 1):+6.1f} %  {settings}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help=f"default: {PUBLISHED.name}")
    parser.add_argument("--machine", default=str(H200_PAIR), help="of rows that name none (default: two H200)")
    arguments = parser.parse_args()
    files = arguments.files or [PUBLISHED]
    rows = [row for file in files for row in rows_of(file, arguments.machine)]
    if not rows:
        sys.exit("these files hold no collectives")
    print(f"{'machine':38} {'n':>3} {'operation':14} {'size':>12} {'predicted':>7}  measured")
    _print_rows(rows)
    kinds = defaultdict(list)
    for row in filter(lambda row: row.large, rows):
        kinds[row.kind].append(row)
    print("\n64 MiB and more, by what decides:")
    for kind, members in kinds.items():
        print(f"  {kind:20} {summary(members)}")
    large = [row for row in rows if row.large]
    print(f"  {'held out':20} {summary(row for row in large if not row.fit)}")
    once = machine_errors(large)
    print(f"  each machine, group and page once: {len(once)}, median {median(once):.1f} %")
    print(f"  {'below 64 MiB':20} {summary(row for row in rows if not row.large)}")
    print(json.dumps(summary(large)))


if __name__ == "__main__":
    main()

"""Measured links as text, beside what the model has for them."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from advisor.report.layout import Column, Grid, Row, prose, section, stack
from advisor.rules.format import UNKNOWN, bandwidth, ids, plural, seconds
from advisor.rules.measurements import Compared, Links


def measured_section(links: Links | None, rows: Sequence[Compared], notes: Sequence[str]) -> RenderableType | None:
    """Show what was measured and since when, what could not be, and why kept measurements are not used."""
    if links is None:
        return section("Measured links", *map(prose, notes)) if notes else None
    columns = [
        Column("measured"),
        Column("operation"),
        Column("latency", "right"),
        Column("modelled", "right"),
        Column("bus bandwidth", "right"),
        Column("modelled", "right"),
    ]
    table = Grid(columns, map(_row, rows)) if rows else None
    lines = [prose(line) for line in (*_copies(links), *_failed(links), *notes)]
    return section(f"Links, measured {links.day} in {seconds(links.seconds)}", stack(table, *lines))


def _row(one: Compared) -> Row:
    beside = f", {one.group.concurrent} such groups at once" if one.group.concurrent > 1 else ""
    model = one.modelled
    return Row(
        (
            f"{ids(one.group.gpus)}{beside}",
            one.op,
            seconds(one.measured.latency),
            UNKNOWN if model is None else seconds(model.latency),
            bandwidth(one.measured.bus_bandwidth),
            UNKNOWN if model is None else bandwidth(model.bus_bandwidth),
        )
    )


def _copies(links: Links) -> Iterator[str]:
    copies = links.host_copies
    if copies is not None:
        each = f"{bandwidth(copies.to_gpu)} from host memory and {bandwidth(copies.from_gpu)} to it"
        yield f"Copies of all GPUs at once: {each}, each GPU"


def _failed(links: Links) -> Iterator[str]:
    for number, one in enumerate(links.failed):
        head = f"{plural(len(links.failed), 'measurement')} failed: " if number == 0 else ""
        yield f"{head}{one.what}: {one.why}"

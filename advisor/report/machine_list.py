"""The machines that have a name, as a table for each vendor."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import RenderableType

from advisor.probe.instances import NamedMachine
from advisor.report.layout import Column, Command, Grid, section, stack

EXAMPLES = (
    "advisor probe --machine p4d.24xlarge",
    "advisor recommend --params 13e9 --machine '2x p5.48xlarge'",
)
COLUMNS = (Column("name"), Column("$/hour", "right"), Column("what it is", folds=True))


def machine_list_report(machines: Sequence[NamedMachine]) -> RenderableType:
    """Show the machines in the order of the table, vendor by vendor."""
    vendors = groupby(machines, key=lambda machine: machine.vendor)
    return stack(
        *(section(vendor, Grid(COLUMNS, map(_row, group)).without_empty("")) for vendor, group in vendors),
        section("One of them, or several of one kind", *map(Command, EXAMPLES)),
    )


def _row(machine: NamedMachine) -> tuple[str, str, str]:
    price = f"{machine.price.dollars_per_hour:.2f}" if machine.price else ""
    return machine.name, price, machine.description

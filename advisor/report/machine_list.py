"""The machines that have a name, as a table for each vendor."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType

from advisor.probe.instances import NamedMachine
from advisor.report.layout import Column, Grid, section

COLUMNS = (Column("name"), Column("$/hour", "right"), Column("what it is", folds=True))


def machine_list_report(machines: Sequence[NamedMachine]) -> RenderableType:
    """Show the machines in the order of the table, vendor by vendor."""
    vendors = groupby(machines, key=lambda machine: machine.vendor)
    return Group(*(section(vendor, Grid(COLUMNS, [_row(machine) for machine in group])) for vendor, group in vendors))


def _row(machine: NamedMachine) -> tuple[str, str, str]:
    price = f"{machine.price.dollars_per_hour:.2f}" if machine.price else ""
    return machine.name, price, machine.description

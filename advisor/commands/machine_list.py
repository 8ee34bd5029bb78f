"""`advisor probe --machine list`: the machines that have a name."""

from typing import TYPE_CHECKING

from advisor.answer import Answer
from advisor.probe.instances import NamedMachine, named_machines
from advisor.rules.machine import Value

if TYPE_CHECKING:
    from rich.console import RenderableType


class MachineList(Value, frozen=True, kw_only=True):
    version: int = 1
    machines: tuple[NamedMachine, ...]


def machine_list() -> Answer:
    """List the names, what each machine is, and what it costs."""
    machines = named_machines()

    def report() -> "RenderableType":
        from advisor.report.machine_list import machine_list_report

        return machine_list_report(machines)

    def verdict() -> "RenderableType":
        return "\n".join(machine.name for machine in machines)

    return Answer(0, MachineList(machines=machines), report, verdict)

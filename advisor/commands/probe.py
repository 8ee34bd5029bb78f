"""`advisor probe`: what this machine is, and what is wrong with it."""

import argparse
from functools import partial
from typing import TYPE_CHECKING

from advisor.answer import Answer
from advisor.arguments import add_machine, add_output, count
from advisor.commands.machine import machine_of
from advisor.commands.rules import add_rules, rules_of
from advisor.picture.files import FILES
from advisor.rules.errors import AdvisorError

if TYPE_CHECKING:
    from rich.console import RenderableType


def add_probe(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "probe",
        help="what this machine is: GPUs, links, islands",
        description="Says what a machine is: GPUs, links, islands, the slowest link, what collectives cost, and what "
        "could not be seen.",
        allow_abbrev=False,
    )
    add_machine(parser)
    parser.add_argument(
        "--measure",
        action="store_true",
        help="time collectives and copies to the host now (seconds), and keep the result",
    )
    parser.add_argument(
        "--gpus", type=count, metavar="N", help="GPUs to measure (default: all); without a GPU, CPU processes with gloo"
    )
    add_rules(parser)
    add_output(parser, FILES)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> Answer:
    """Probe, and judge what needs no job."""
    if args.machine == ["list"]:
        from advisor.commands.machine_list import machine_list

        return machine_list()
    from advisor.commands.measured import kept_of, measure, seen_by
    from advisor.probe.document import ProbeDocument
    from advisor.rules.fabric import fabric_of
    from advisor.rules.measurements import compared, with_measured
    from advisor.rules.rule import Case, run_rules

    rules = rules_of(args)
    machine = machine_of(args)
    if args.gpus is not None and not args.measure:
        raise AdvisorError("--gpus says what --measure measures", "add --measure, or leave it out")
    kept = measure(args, machine) if args.measure else kept_of(args, machine)
    known, devices = kept.measurements, seen_by(kept, machine)
    links = known.links if known else None
    fabric = fabric_of(devices)
    if links is not None:
        fabric = with_measured(fabric, devices, links)
    findings = run_rules(rules, Case(machine=machine))
    document = ProbeDocument(machine=machine, fabric=fabric, findings=findings, measured=known)

    def report() -> "RenderableType":
        from advisor.report.machine import machine_report
        from advisor.report.measured import measured_section

        measured = measured_section(links, list(compared(devices, links)) if links else (), kept.notes)
        return machine_report(machine, fabric, findings, again=args.again, measured=measured)

    def verdict() -> "RenderableType":
        from advisor.report.machine import machine_verdict

        return machine_verdict(machine, fabric)

    code = 1 if any(finding.severity == "error" for finding in findings) else 0
    files = {ending: partial(make, document) for ending, make in FILES.items()}
    return Answer(code, document, report, verdict, files=files)

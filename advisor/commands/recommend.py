"""`advisor recommend`: does it fit, what is the best plan, what would each alternative cost."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from advisor.answer import Answer
from advisor.arguments import add_allow, add_machine, add_output, count, one_of
from advisor.commands.job import add_job, job_of
from advisor.commands.machine import machine_of
from advisor.commands.rules import add_only, add_rules, rules_of
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Machine

if TYPE_CHECKING:
    from rich.console import RenderableType

    from advisor.rules.checklist import Checklist

STRATEGIES = ("single", "ddp", "fsdp", "hsdp")
CPU_RANKS = 2  # processes on a machine without a GPU, as `apply` starts there


def add_recommend(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "recommend", help="does a job fit, the best plan, what each alternative costs", allow_abbrev=False
    )
    add_job(parser)
    group = parser.add_argument_group("the machine and the choice")
    add_machine(group)
    add_choice(group)
    group.add_argument("--nodes", type=count, metavar="N", help="hosts to use, of several")
    add_rules(parser)
    add_only(parser)
    parser.add_argument("--checklist", action="store_true", help="answer six questions with the plan's numbers instead")
    parser.add_argument(
        "--run", metavar="DIR", dest="run_dir", help="instead: why the trials before a run chose its plan"
    )
    add_output(parser)
    parser.set_defaults(run=run)


def add_choice(parser: argparse._ActionsContainer) -> None:
    """Add the options that narrow or widen the choice of plans."""
    parser.add_argument("--gpus", type=count, metavar="N", help="GPUs per host; without a GPU, CPU processes")
    parser.add_argument(
        "--only", type=one_of(*STRATEGIES), default=(), metavar="STRATEGY,...", help=f"of {', '.join(STRATEGIES)}"
    )
    add_allow(parser)


def run(args: argparse.Namespace) -> Answer:
    """Recommend a plan for the job that the options describe."""
    from advisor.commands.measured import calibration_for
    from advisor.rules.checklist import checklist_of
    from advisor.rules.recommend import recommend
    from advisor.rules.visible_devices import for_planning

    if args.run_dir is not None:
        return _trials(args.run_dir)
    rules = rules_of(args)
    machine, seen = for_planning(with_devices(machine_of(args), args.gpus))
    job, assumptions = job_of(args, machine, (args.gpus or len(machine.gpus)) * (args.nodes or machine.nodes))
    calibration, measured = calibration_for(args, machine)
    assumptions = (*seen, *assumptions, *measured)
    answer = recommend(
        job,
        machine,
        only=args.only,
        gpus=args.gpus,
        nodes=args.nodes,
        assumptions=assumptions,
        rules=rules,
        calibration=calibration,
    )

    if args.checklist:
        return _checklist(checklist_of(answer, machine))

    def report() -> "RenderableType":
        from advisor.report.recommendation import recommendation_report

        return recommendation_report(answer, machine, again=args.again)

    def verdict() -> "RenderableType":
        from advisor.report.recommendation import recommendation_verdict

        return recommendation_verdict(answer)

    return Answer(0 if answer.plan else 1, answer, report, verdict)


def _trials(folder: str) -> Answer:
    """Show what was tried before a run."""
    from advisor.rules.trial import Calibrated

    path = Path(folder) / "calibration.json"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Calibrated)
    except OSError as error:
        hint = "give --run the folder of a run that advisor apply has made with trials, such as advisor-runs/..."
        raise AdvisorError(f"can't read {path}: {error.strerror}", hint) from error
    except msgspec.MsgspecError as error:
        raise AdvisorError(f"{path} holds no trials: {error}", "give --run another folder") from error

    def report() -> "RenderableType":
        from advisor.report.calibrated import calibrated_report

        return calibrated_report(found)

    def verdict() -> "RenderableType":
        from advisor.report.calibrated import verdict_line

        return verdict_line(found)

    return Answer(0, found, report, verdict)


def _checklist(checklist: "Checklist") -> Answer:
    def report() -> "RenderableType":
        from advisor.report.checklist import checklist_report

        return checklist_report(checklist)

    def verdict() -> "RenderableType":
        from advisor.report.checklist import checklist_verdict

        return checklist_verdict(checklist)

    return Answer(0, checklist, report, verdict)


def with_devices(machine: Machine, ranks: int | None) -> Machine:
    """Return the machine, with CPU processes in the place of GPUs where it has none."""
    from advisor.rules.cpu_ranks import cpu_stand_ins

    return machine if machine.gpus else cpu_stand_ins(machine, ranks or CPU_RANKS)

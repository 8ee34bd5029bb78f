"""`advisor apply SCRIPT`: run a training script under a plan, and say how well the prediction held."""

import argparse
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from advisor.answer import Answer
from advisor.arguments import add_allow, add_machine, add_output, count, one_of, span
from advisor.commands.machine import machine_of
from advisor.commands.recommend import STRATEGIES, with_devices
from advisor.commands.rules import add_rules, rules_of
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Machine
from advisor.rules.plan import Finding, Plan, Predicted, Recommendation
from advisor.rules.rule import Case, Rule, run_rules

if TYPE_CHECKING:
    from rich.console import RenderableType

    from advisor.executor.calibrate import Settings
    from advisor.executor.script import ScriptFacts
    from advisor.rules.trial import Calibrated

BUDGET = 120.0  # seconds


def add_apply(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "apply",
        help="run a training script under a plan",
        usage="advisor apply [options] SCRIPT [arguments of the script]",
        description="Everything after SCRIPT, --help and -- included, belongs to the script.",
        allow_abbrev=False,
    )
    parser.add_argument("--plan", metavar="FILE", help="a plan, or what `advisor recommend -o FILE.json` wrote")
    parser.add_argument("--gpus", type=count, metavar="N", help="GPUs to use; without a GPU, CPU processes with gloo")
    parser.add_argument(
        "--only", type=one_of(*STRATEGIES), default=(), metavar="STRATEGY,...", help="strategies allowed"
    )
    add_allow(parser, bf16_weights="bf16-weights (FSDP's, where the script computes under autocast)")
    parser.add_argument(
        "--budget",
        metavar="SECONDS",
        type=span,
        help=f"time for short trials that choose the plan (default: {BUDGET:.0f}s, none where they did before)",
    )
    parser.add_argument("--no-calibrate", action="store_true", help="run no trials: all GPUs, the script as it is")
    parser.add_argument(
        "--unchecked",
        action="store_true",
        help="run a script for one process on all GPUs without the proof that its first steps are the same",
    )
    parser.add_argument("--run-dir", metavar="DIR", type=Path, help="folder of the run (default: advisor-runs/...)")
    parser.add_argument(
        "--hang-timeout",
        metavar="SECONDS",
        type=duration,
        help="stop ranks that wait for one another that long (default: 60; 0: never)",
    )
    parser.add_argument(
        "--force", type=codes, default=(), metavar="CODE,...", help="start in spite of these findings of severity error"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the command and environment, start nothing")
    add_machine(parser)
    add_rules(parser)
    add_output(parser)
    # PARSER takes the first word that is no option and all that follows, untouched; REMAINDER would lose a bare --.
    parser.add_argument("command_line", metavar="SCRIPT", nargs=argparse.PARSER, help="the script and its arguments")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> Answer:
    """Run the script, or with --dry-run show how it would be run."""
    from advisor.commands.measured import calibration_for
    from advisor.executor import apply as executor
    from advisor.executor.before import judged, stopping
    from advisor.executor.feedback import learn
    from advisor.executor.script import read_script
    from advisor.rules.proposals import predicted_as_run
    from advisor.rules.script_plan import script_plan

    script, *arguments = args.command_line
    if args.machine is not None and not args.dry_run:
        raise AdvisorError(
            "--machine describes another machine; a script runs on this one", "add --dry-run, or leave it out"
        )
    machine = with_devices(machine_of(args), args.gpus)
    rules = rules_of(args)
    given = None if args.plan is None else _given_plan(args, machine)
    facts = read_script(script)
    plan, predicted = given or (script_plan(machine, args.gpus, rules, shards=facts.kind == "fsdp"), None)
    choose = _choice(args, machine, rules, facts) if args.plan is None and plan.ranks > 1 else None
    if args.only and plan.strategy not in args.only and choose is None:
        raise AdvisorError(
            f"the plan's strategy is {plan.strategy}, not {' or '.join(args.only)}", "give another --plan or --only"
        )
    findings = judged(script, plan, machine, predicted, rules)
    refuse_errors(stopping(findings, plan), args.force)
    if args.dry_run:
        launch = executor.dry_run(plan, script, arguments, run_dir=args.run_dir, machine=machine)

        def command() -> "RenderableType":
            from advisor.report.run import launch_report

            return launch_report(launch)

        return Answer(0, launch, command, command)
    calibration, _ = calibration_for(args, machine)
    result = executor.apply(
        plan,
        predicted or (lambda observed: predicted_as_run(plan, observed, machine, calibration)),
        script,
        arguments,
        run_dir=args.run_dir,
        machine=machine,
        hang_timeout=executor.HANG_TIMEOUT if args.hang_timeout is None else args.hang_timeout,
        findings=findings,
        choose=choose,
        unchecked=args.unchecked,
    )
    learn(result, machine)

    def report() -> "RenderableType":
        from advisor.report.run import run_report

        return run_report(result)

    def verdict() -> "RenderableType":
        from advisor.report.run import run_verdict

        return run_verdict(result)

    return Answer(result.exit_code, result, report, verdict, to_stderr=True)


def _choice(
    args: argparse.Namespace, machine: Machine, rules: Sequence[Rule], facts: "ScriptFacts"
) -> "Callable[[Plan, Path], Calibrated] | None":
    """Return what chooses a plan by trials, or recalls what they chose before; None where there are to be none."""
    from advisor.executor import learnt
    from advisor.executor.before import judged, stopping
    from advisor.executor.calibrate import Task, calibrate
    from advisor.executor.console import say
    from advisor.executor.refuse import refuse

    if args.no_calibrate or facts.syntax_error is not None or facts.kind == "plain":
        return None  # a plain script is proven under one plan before it runs
    script, *arguments = args.command_line

    def may_run(plan: Plan) -> bool:
        try:
            refuse(plan, facts)
        except AdvisorError:
            return False
        errors = stopping(judged(script, plan, machine, None, rules), plan)
        return all(error.code in args.force for error in errors)

    task = Task(
        machine=machine,
        script=script,
        arguments=tuple(arguments),
        facts=facts,
        budget=args.budget or BUDGET,
        settings=proposed_settings(machine, rules),
        may_run=may_run,
        only=args.only,
        allow=args.allow,
    )

    def choose(plan: Plan, folder: Path) -> "Calibrated":
        known = None if args.budget else learnt.recall(task, plan)
        if known is not None:
            return replace(known.calibrated, recalled=known.date)
        found = calibrate(plan, task, folder)
        line = learnt.keep(task, plan, datetime.now().astimezone().isoformat(timespec="seconds"), found)
        if line is not None:
            say(line)
        return found

    return choose


def proposed_settings(machine: Machine, rules: Sequence[Rule]) -> "Settings":
    """Return what tells the settings that rules propose beside a plan's own, by what NCCL logged: one set a rule."""
    from advisor.probe.merge import merge
    from advisor.probe.text.nccl_log import read_nccl_log
    from advisor.rules.recommend import with_environment

    def settings(plan: Plan, log: str) -> list[dict[str, str]]:
        told = read_nccl_log(log, "NCCL's log of the first trial")
        known = machine if told is None else merge([machine, told])
        found = [with_environment(plan, [one]).env for one in run_rules(rules, Case(machine=known, plan=plan))]
        new = [{name: value for name, value in env.items() if name not in plan.env} for env in found]
        return [env for env in new if env]

    return settings


def refuse_errors(findings: Sequence[Finding], force: Collection[str]) -> None:
    """Raise an AdvisorError for findings that say it will not work, unless the user forces them."""
    errors = [finding for finding in findings if finding.severity == "error" and finding.code not in force]
    if not errors:
        return
    found = "; ".join(f"{place_of(finding)}{finding.code}: {finding.message}" for finding in errors)
    todo = "; ".join(finding.remedy for finding in errors)
    raise AdvisorError(
        f"this would not work: {found}", f"{todo}; or start all the same: --force {','.join(f.code for f in errors)}"
    )


def place_of(finding: Finding) -> str:
    return "" if finding.file is None or finding.line is None else f"{finding.file}, line {finding.line}: "


def codes(text: str) -> tuple[str, ...]:
    """Read codes of rules."""
    return tuple(code.strip().upper() for code in text.split(",") if code.strip())


def duration(text: str) -> float:
    """Read seconds, 0 or more."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return seconds


def _given_plan(args: argparse.Namespace, machine: Machine) -> tuple[Plan, Predicted | None]:
    """Read the plan that was given, with its prediction."""
    plan, predicted = read_plan(args.plan)
    if args.gpus is not None and args.gpus != len(plan.gpus):
        raise AdvisorError(f"{args.plan} is for {len(plan.gpus)} GPUs, not {args.gpus}", "leave --gpus out")
    missing = [gpu for gpu in plan.gpus if gpu not in {there.id for there in machine.gpus}]
    if missing:
        raise AdvisorError(
            f"{args.plan} uses {', '.join(missing)}, which this machine does not have",
            "plan for this machine: advisor recommend --params N -o plan.json",
        )
    return plan, predicted


def read_plan(name: str) -> tuple[Plan, Predicted | None]:
    """Read a plan, or the plan of a stored recommendation, from a JSON file."""
    try:
        content = Path(name).read_bytes()
        fields = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        if "verdict" not in fields:
            return msgspec.json.decode(content, type=Plan), None
        recommendation = msgspec.json.decode(content, type=Recommendation)
    except OSError as error:
        raise AdvisorError(f"can't read {name}: {error.strerror}", "give --plan a file that exists") from error
    except msgspec.MsgspecError as error:
        hint = "make one with: advisor recommend --params N -o plan.json"
        raise AdvisorError(f"{name} is no plan: {error}", hint) from error
    if recommendation.plan is None:
        raise AdvisorError(f"{name} holds no plan: the job does not fit", "recommend again with what the finding says")
    return recommendation.plan, recommendation.predicted

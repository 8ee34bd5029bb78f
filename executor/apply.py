"""Run a script under a plan: from the plan to the report. The one door to the executor."""

import datetime
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from advisor.executor import report
from advisor.executor.console import say
from advisor.executor.exit_status import script_exit
from advisor.executor.fault import fault_of
from advisor.executor.folder import RunFolder, choose_folder, write_whole
from advisor.executor.launch import Launch, plan_launch, sees_one_gpu
from advisor.executor.leftovers import leftovers, mark_alive, unmark_alive
from advisor.executor.observe import observed_of
from advisor.executor.process import run
from advisor.executor.proof import Proof, in_words
from advisor.executor.prove import prove
from advisor.executor.records import read_ranks
from advisor.executor.refuse import refuse
from advisor.executor.script import ScriptFacts, read_script
from advisor.rules.errors import AdvisorError
from advisor.rules.format import plural, seconds
from advisor.rules.machine import Machine, Unknown
from advisor.rules.observed import Observed
from advisor.rules.plan import Finding, Plan, Predicted
from advisor.rules.plan_name import strategy
from advisor.rules.trial import Calibrated

HANG_TIMEOUT = 60.0  # seconds


def dry_run(
    plan: Plan, script: str, arguments: Sequence[str], *, run_dir: Path | None = None, machine: Machine | None = None
) -> Launch:
    """Return what `apply` would start; refuse what it would refuse."""
    facts = read_script(script)
    refuse(plan, facts)
    folder = choose_folder(run_dir, script, _now())
    return plan_launch(plan, script, arguments, folder, machine=machine, facts=facts)


def apply(
    plan: Plan,
    predicted: Predicted | Callable[[Observed], Predicted | None] | None,
    script: str,
    arguments: Sequence[str],
    *,
    run_dir: Path | None = None,
    machine: Machine | None = None,
    hang_timeout: float = HANG_TIMEOUT,
    findings: Sequence[Finding] = (),
    choose: Callable[[Plan, Path], Calibrated] | None = None,
    unchecked: bool = False,
) -> report.Run:
    """Run `script`, spelt as the user typed it, and return what was measured, also written to report.json.

    A plain script is compared with one process first, unless it is to run `unchecked`.
    `choose` makes another plan of `plan` by trials whose records it puts into the folder given to it.
    `findings` on machine and plan are said before it starts and stored; whether to start is the caller's decision.
    Rank 0 writes to our own streams; what torchrun itself says is kept in logs/torchrun.err. Raises AdvisorError if the
    script can't be run as planned, and if torchrun ends before any process has started. Ranks that wait for one
    another for `hang_timeout` seconds are stopped; 0 lets them wait.
    """
    facts = read_script(script)
    refuse(plan, facts)
    plan = as_it_will_run(plan, facts)
    started = _now()
    folder = choose_folder(run_dir, script, started)
    for line in leftovers(folder.path.absolute().parent):
        say(line)
    for finding in findings:
        if finding.severity != "info":
            say(f"{finding.severity} {finding.code}: {finding.message}; {finding.remedy}")
    if facts.first_gpu is not None and sees_one_gpu(plan, facts):
        where = f"{facts.first_gpu.file}, line {facts.first_gpu.line}"
        say(f"each rank sees its own GPU alone, as cuda:0, since the script takes the first GPU ({where})")
    folder.create()
    proof, calibrated = None, None
    if facts.kind == "plain" and plan.ranks > 1 and not unchecked:
        proof = _proved(plan, facts, arguments, folder, machine)
    if choose is not None:
        calibrated = _calibrated(choose, plan, folder)
        plan, predicted = as_it_will_run(calibrated.plan, facts), calibrated.predicted or predicted
    loss = "mean" if proof is None else proof.loss
    launch = plan_launch(plan, script, arguments, folder, machine=machine, facts=facts, loss=loss)
    _begin(folder, plan)
    clock = time.monotonic()
    ended = run(launch, folder, plan.launcher.nproc_per_node, hang_timeout)
    duration = time.monotonic() - clock
    unmark_alive(folder)
    records = read_ranks(folder.ranks)
    torchrun_log = folder.torchrun_log.read_text(errors="replace")
    if ended.torchrun != 0 and ended.signal is None and not records:
        said = _last_line(torchrun_log) or "nothing"
        raise AdvisorError(f"torchrun started no process: {said}", f"read all it said in {folder.torchrun_log}")
    exit_code, failed_rank = script_exit(ended, torchrun_log, records)
    if callable(predicted):
        predicted = next((predicted(observed) for observed in map(observed_of, records) if observed), None)
    ranks = tuple(map(report.rank_run, records))
    step = max((rank.step for rank in ranks if rank.step), key=lambda step: step.median, default=None)
    result = report.Run(
        script=os.fspath(script),
        arguments=tuple(arguments),
        folder=str(folder.path),
        started=started.isoformat(timespec="seconds"),
        seconds=duration,
        exit_code=exit_code,
        failed_rank=failed_rank,
        failure=_last_words(folder, failed_rank),
        fault=fault_of(ended, torchrun_log, records, folder, plan=plan, predicted=predicted),
        plan=plan,
        predicted=predicted,
        step=step,
        errors=report.compare(predicted, step, ranks),
        ranks=ranks,
        changes=report.changes(plan, records),
        became=report.became(records),
        findings=tuple(findings),
        calibrated=calibrated,
        proof=proof,
        losses=report.losses(records),
        unknown=(*report.unknowns(ranks, records), *map(_cut, ended.cut_logs.items())),
    )
    try:
        report.write_report(folder.report, result)
    except OSError as error:  # what was measured is still shown
        say(f"can't write {folder.report}: {error.strerror}")
    return result


def _proved(
    plan: Plan, facts: ScriptFacts, arguments: Sequence[str], folder: RunFolder, machine: Machine | None
) -> Proof:
    """Compare a plain script on all ranks with one process."""

    def launch(tried: Plan, place: RunFolder) -> Launch:
        return plan_launch(tried, facts.path, arguments, place, machine=machine, facts=facts)

    proof = prove(plan, facts.path, arguments, folder.path / "proof", launch)
    say(in_words(proof, plan.ranks))
    return proof


def _calibrated(choose: Callable[[Plan, Path], Calibrated], plan: Plan, folder: RunFolder) -> Calibrated:
    """Choose the plan, and leave what was tried in calibration.json."""
    calibrated = choose(plan, folder.path / "trials")
    write_whole(folder.calibration, msgspec.json.format(msgspec.json.encode(calibrated), indent=2) + b"\n")
    spent = f"after {plural(len(calibrated.trials), 'trial')} in {seconds(calibrated.spent)}"
    if calibrated.recalled is not None:
        spent = f"by the trials of {calibrated.recalled[:10]} (--budget {calibrated.budget:.0f}s makes new ones)"
    say(f"{strategy(calibrated.plan)} {spent}: {calibrated.why}")
    return calibrated


def as_it_will_run(plan: Plan, facts: ScriptFacts) -> Plan:
    """Return the plan without what this script leaves no room for, and say so."""
    if plan.shard_from == "gpu" or facts.kind in ("ddp", "unknown"):
        return plan
    say('shard_from "cpu" of the plan has no effect: where the model is built is up to the script and its library')
    return msgspec.structs.replace(plan, shard_from="gpu")


def _begin(folder: RunFolder, plan: Plan) -> None:
    try:
        write_whole(folder.plan, msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n")
        mark_alive(folder)
    except OSError as error:
        hint = "free some space, or give --run-dir a folder on another disk"
        raise AdvisorError(f"can't write into the run folder {folder.path}: {error.strerror}", hint) from error


def _cut(log: tuple[str, str]) -> Unknown:
    name, why = log
    return Unknown(what=f"the end of logs/{name}", why=f"it could not be written: {why}")


def _now() -> datetime.datetime:
    return datetime.datetime.now().astimezone()


def _last_words(folder: RunFolder, rank: int | None) -> str | None:
    if rank is None:
        return None
    try:
        return _last_line((folder.logs / f"{rank}.err").read_text(errors="replace"))
    except OSError:
        return None


def _last_line(text: str) -> str | None:
    return next((line for line in reversed(text.splitlines()) if line.strip()), None)

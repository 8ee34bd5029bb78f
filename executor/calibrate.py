"""Choose a plan by short measured runs of the script itself, within a budget of seconds.

The script runs as it is; then without communication, from which the models predict every plan; those that may be the
fastest are tried in turn until the noise, or the budget, ends it. What goes wrong in a trial is a measurement of its
plan, never the end of the run.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from advisor.executor.console import say
from advisor.executor.folder import RunFolder
from advisor.executor.launch import Launch, plan_launch
from advisor.executor.links_known import links_known
from advisor.executor.script import ScriptFacts
from advisor.executor.script_imports import ALWAYS, packages_of
from advisor.executor.trial_session import Session
from advisor.executor.trials import trials_of
from advisor.rules.calibration import Calibration, Floor
from advisor.rules.cost import Costs
from advisor.rules.errors import AdvisorError
from advisor.rules.format import percent, plural, seconds
from advisor.rules.machine import Machine
from advisor.rules.observed import Observed, plan_as_run
from advisor.rules.plan import Plan, Predicted
from advisor.rules.proposals import Proposal, costs_of, proposals
from advisor.rules.trial import SURE, Calibrated, Timing, Tried, contenders, how_simple, margin, settle

MOST_TRIALS = 4  # of one plan
FLOAT = 4  # bytes
SHARE_OF_LINKS = 0.15  # of the budget, for measuring links where nothing is kept of them
Settings = Callable[[Plan, str], Sequence[Mapping[str, str]]]  # what rules propose for a plan, by what NCCL logged
WITHOUT = {
    "ended-early": "the training is too short to be worth trials: {said}",
    "wants-to-write": "the script was not tried: {said}",
    "too-long": "the script's steps are too long for trials: {said}",
    "out-of-memory": "the script as it is runs out of memory: {said}",
    "failed": "the script as it is failed in a trial: {said}",
}


class Task(NamedTuple):
    """A script on a machine, and what may be tried of it."""

    machine: Machine
    script: str
    arguments: tuple[str, ...]
    facts: ScriptFacts
    budget: float  # seconds in all
    settings: Settings
    may_run: Callable[[Plan], bool]  # else a plan is not tried
    only: tuple[str, ...] = ()  # strategies; none named: all
    allow: tuple[str, ...] = ()  # what changes numerics


def calibrate(plan: Plan, task: Task, folder: Path) -> Calibrated:
    """Return the plan to run, and all that was tried; `plan` is the script as it is.

    `folder` takes the records of the trials. Raises an AdvisorError only where no trial can be started at all. A script
    may mind that its packages were imported before it began; if it fails so, only torch is.
    """
    started = time.monotonic()
    packages = packages_of(task.script)
    found = _calibrated(plan, task, folder, packages, started)
    if found.trials[0].outcome == "failed" and packages != ALWAYS:
        say("once more, with nothing but torch imported before the script begins")
        found = _calibrated(plan, task, folder / "again", ALWAYS, started)
    return found


def _calibrated(plan: Plan, task: Task, folder: Path, packages: Sequence[str], started: float) -> Calibrated:
    def launch(tried: Plan, place: RunFolder) -> Launch:
        return plan_launch(tried, task.script, task.arguments, place, machine=task.machine, facts=task.facts)

    with trials_of(task.script, task.arguments, folder, launch(plan, RunFolder(folder / "00"))) as trials:
        session = Session(trials, launch, task.budget, started)
        imported = trials.preload(packages)
        links = links_known(task.machine, plan.gpus, trials.forks, SHARE_OF_LINKS * task.budget)
        first = session.first(plan)
        why = WITHOUT.get(first.outcome, "{said}").format(said=first.said or "there is nothing to choose")
        found = Calibrated(
            script=task.script,
            arguments=task.arguments,
            budget=task.budget,
            spent=0.0,
            import_seconds=imported,
            plan=plan,
            predicted=None,
            why=why,
        )
        if first.outcome in ("measured", "out-of-memory"):
            found = _choose(session, found, task, links)
        return replace(found, spent=session.spent, trials=tuple(session.done))


def _choose(session: Session, found: Calibrated, task: Task, links: Calibration) -> Calibrated:
    own = found.plan
    costs = costs_of(session.observed, task.machine, own, task.allow, links)
    floor = _floor(session, own) if costs is not None and task.facts.kind == "ddp" and own.ranks > 1 else None
    if costs is not None and floor is not None:
        floors = (Floor(micro_batch=costs.job.micro_batch or 1, seconds=floor),)
        costs = Costs(costs.job, costs.machine, replace(links, floors=floors))
    short = session.done[0].outcome == "out-of-memory"
    seen = session.observed
    gradients = 0 if seen is None else FLOAT * seen.trainable
    wanted = []
    if own.ranks > 1:
        wanted = proposals(costs, task.machine, own, task.only, gradients=gradients, short_of_memory=short)
        wanted = [one for one in wanted if task.may_run(one.plan)]
    tried, untried = race(session, own, wanted, leaving=1 if task.settings(own, session.log) else 0)
    allowed = [one for one in tried if not task.only or one.strategy in task.only]
    if not session.timings(allowed):
        if task.only:
            raise AdvisorError(*_none_of(task.only, session, allowed))
        return found  # nothing runs: the run itself will say so at length
    chosen = settle(session.timings(allowed))
    for settings in task.settings(chosen, session.log):
        with_it = replace(chosen, env=chosen.env | dict(settings))
        if _compare(session, chosen, with_it):
            tried.append(with_it)
            chosen = settle(session.timings([chosen, with_it]))
    before = [Proposal(plan=own, predicted=_predicted(own, costs, session.observed)), *wanted]
    rows = [_row(session, plan, chosen, before) for plan in [chosen, *(p for p in tried if p != chosen)]]
    rows += [Tried(plan=one.plan, predicted=one.predicted, timing=None, verdict=reason) for one, reason in untried]
    return replace(
        found,
        plan=chosen,
        predicted=_as_measured(session, chosen, rows[0].predicted),
        why=_why(session, chosen, tried, own),
        floor=floor,
        tried=tuple(rows),
    )


def _none_of(only: Sequence[str], session: Session, allowed: Sequence[Plan]) -> tuple[str, str]:
    said = next((trial.said for plan in allowed for trial in session.of(plan) if trial.said), "none can be run")
    return (
        f"no plan for {' or '.join(only)} ran in a trial: {said}",
        "leave --only out, or give a plan with --plan",
    )


def _floor(session: Session, own: Plan) -> float | None:
    """Measure a step in which each rank trains alone; None where that did not work."""
    best = session.best([own])
    trial = None if best is None else session.again(own, "no-communication", best)
    if best is None or trial is None or trial.outcome != "measured":
        return None
    return min(median(trial.steps), best)  # traffic makes no step shorter, noise does


def race(
    session: Session, own: Plan, wanted: Sequence[Proposal], leaving: int = 0
) -> tuple[list[Plan], list[tuple[Proposal, str]]]:
    """Try each plan that may be the fastest once, then those that tie with it again, in turns.

    So many trials are left for the settings that rules propose: where steps take seconds, buckets would use up the
    budget, and a setting of the transport may change more. Returns the plans that were tried, and the others with the
    reason.
    """
    tried, untried = [own], list[tuple[Proposal, str]]()
    for one in wanted:
        best = session.best(tried)
        if one.predicted is not None and best is not None and one.predicted.step_seconds_range[0] > best:
            low, high = one.predicted.step_seconds_range
            untried.append((one, f"predicted {seconds(low)}-{seconds(high)}, {seconds(best)} were measured"))
        elif session.again(one.plan, "candidate", best, leaving) is None:
            untried.append((one, "no time was left to try it"))
        else:
            tried.append(one.plan)
    for _ in range(MOST_TRIALS - 1):
        timings = session.timings(tried)
        near = contenders(timings) if timings else []
        if len(near) < 2:
            break
        for plan in near:
            session.again(plan, "candidate", session.best(tried), leaving)
    return tried, untried


def _compare(session: Session, without: Plan, with_it: Plan) -> bool:
    """Try a setting and the plan without it in turns; say whether it was tried at all.

    One that wins its first trial is tried once more, where there is time: it is kept for the whole run.
    """
    for turn in range(MOST_TRIALS - 1):
        best = session.best([without])
        if session.again(with_it, "setting", best) is None:
            break
        timings = session.timings([without, with_it])
        near = contenders(timings) if len(timings) == 2 else [without]
        if near == [without] or (near == [with_it] and turn > 0):
            break
        session.again(without, "candidate", best)
    return bool(session.of(with_it))


def _predicted(own: Plan, costs: Costs | None, observed: Observed | None) -> Predicted | None:
    if costs is None or observed is None:
        return None
    as_run = plan_as_run(own, costs.job, observed)
    return costs.predict(as_run, costs.memory(as_run))


def _row(session: Session, plan: Plan, chosen: Plan, before: Sequence[Proposal]) -> Tried:
    predicted = next((one.predicted for one in before if replace(one.plan, env=plan.env) == plan), None)
    failed = next((trial for trial in session.of(plan) if trial.outcome != "measured"), None)
    if failed is not None:
        return Tried(plan=plan, predicted=predicted, timing=None, verdict=f"{failed.outcome}: {failed.said}")
    own, best = session.timing(plan), session.timing(chosen)
    return Tried(plan=plan, predicted=predicted, timing=own, verdict=_verdict((plan, own), (chosen, best)))


def _verdict(one: tuple[Plan, Timing], chosen: tuple[Plan, Timing]) -> str:
    (plan, own), (taken, best) = one, chosen
    if plan == taken:
        return "chosen"
    difference = own.median / best.median - 1
    if abs(difference) <= margin(own, best):
        # a setting that won against the plan without it may tie with a simpler plan
        less_simple = ", less simple" if how_simple(plan) > how_simple(taken) else ""
        return f"tie: {percent(difference, signed=True)} within the noise of {percent(margin(own, best))}{less_simple}"
    return f"{own.median / best.median:.2f}x the step time"


def _as_measured(session: Session, plan: Plan, predicted: Predicted | None) -> Predicted | None:
    """Return the prediction of a run by the trials of its plan, as far as they tell; the rest is the model's."""
    if predicted is None:
        return None
    known = session.timing(plan)
    factor = known.median / predicted.step_seconds
    used = max((trial.device_used for trial in session.of(plan) if trial.device_used), default=None)
    allocated = max((trial.peak_allocated for trial in session.of(plan) if trial.peak_allocated), default=None)
    memory = predicted.memory
    if allocated is not None:  # what the model does not see of it is what a step keeps
        activations = max(0, memory.activations + allocated - (memory.total - memory.context))
        memory = replace(memory, activations=activations, total=allocated + memory.context)
    if used is not None:
        memory = replace(memory, total=used, context=max(0, memory.context + used - memory.total))
    low, high = (known.median * (1 + sign * SURE * known.noise) for sign in (-1, 1))
    return replace(
        predicted,
        step_seconds=known.median,
        step_seconds_range=(low, high),
        exposed_communication_seconds=max(0.0, known.median - predicted.compute_seconds),
        samples_per_second=predicted.samples_per_second / factor,
        tokens_per_second=predicted.tokens_per_second / factor,
        memory=memory,
        source="measured",
        correction=None,
    )


def _why(session: Session, chosen: Plan, tried: Sequence[Plan], own: Plan) -> str:
    mine = session.timing(chosen)
    measured = f"{seconds(mine.median)} per step by {plural(mine.trials, 'trial')}"
    others = [(plan, known) for plan, known in session.timings(tried) if plan != chosen]
    if not others:
        return f"{measured}; no other plan ran to its end" if len(tried) > 1 else f"{measured}; no other plan may win"
    without = [one for one in others if one[0] == replace(chosen, env=own.env)]
    next_best = min((known for _, known in without or others), key=lambda known: known.median)
    times = next_best.median / mine.median
    if without:
        return f"{measured}; without its NCCL settings it needs {seconds(next_best.median)}, {times:.2f} times as long"
    if abs(times - 1) <= margin(mine, next_best):
        noise = percent(margin(mine, next_best))
        return f"{measured}; the next is as fast within the noise of {noise}, and this is the simpler one"
    return f"{measured}; the next needs {seconds(next_best.median)}, {times:.2f} times as long"

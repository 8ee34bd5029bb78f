"""A finished run as text: what `advisor apply` says at the end."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from advisor.executor.fault import Fault
from advisor.executor.launch import Launch
from advisor.executor.proof import in_words
from advisor.executor.report import Became, Change, RankRun, Run, StepTime
from advisor.report.calibrated import trials_section
from advisor.report.layout import (
    Column,
    Command,
    Grid,
    Row,
    indented,
    labelled,
    one_line,
    prose,
    section,
    sentence,
    stack,
)
from advisor.report.plan import devices_in_words
from advisor.rules.format import UNKNOWN, folded, ids, memory, percent, plural, seconds, seconds_range
from advisor.rules.measurements import correction_in_words
from advisor.rules.plan import Predicted
from advisor.rules.plan_name import strategy

MOST_RANKS = 16
CALIBRATION = "calibration.json"
FILES = (
    ("report.json", "all of this and more, for programs"),
    ("plan.json", "what was run; again with: --plan"),
    (CALIBRATION, "all trials; shown again with: advisor recommend --run"),
    ("logs/", "what each rank wrote"),
    ("ranks/", "each rank's steps and memory"),
)


def run_report(run: Run) -> RenderableType:
    """Show how a run ended, predicted against measured, its ranks, and where its files are."""
    return stack(
        Group(_verdict_line(run), *_failure(run)),
        _compared(run),
        _one_process(run),
        None if run.calibrated is None else trials_section(run.calibrated),
        _ranks(run.ranks),
        _changes(run.changes),
        *_libraries(run.became),
        section("Not known", labelled([(unknown.what, unknown.why) for unknown in run.unknown]))
        if run.unknown
        else None,
        section(f"Files in {run.folder}", labelled([row for row in FILES if run.calibrated or row[0] != CALIBRATION])),
    )


def run_verdict(run: Run) -> Text:
    """Say in one line how a run ended and how far the prediction was off."""
    return one_line(_verdict_line(run))


def launch_report(launch: Launch) -> RenderableType:
    """Show the command that a dry run would start, ready to be copied."""
    return Command(launch.shell())


def _verdict_line(run: Run) -> Text:
    word, style = ("Finished", "bold green") if run.exit_code == 0 else ("Failed", "bold red")
    parts = [f"{run.script} with {strategy(run.plan)} on {devices_in_words(run.plan)} in {seconds(run.seconds)}"]
    if run.exit_code:
        parts.insert(0, f"exit code {run.exit_code}")
    if run.step is not None:
        error = run.errors.step_pct
        judged = "" if error is None else f" (prediction off by {percent(error / 100, signed=True)})"
        parts.append(f"{seconds(run.step.median)} a step{judged}")
    return Text.assemble((f"{word}: ", style), sentence("; ".join(parts)))


def _failure(run: Run) -> Iterator[RenderableType]:
    if run.fault is not None:
        yield from _fault(run.fault)
    elif run.failed_rank is not None:
        yield prose(f"rank {run.failed_rank} failed first{f': {run.failure}' if run.failure else ''}")


def _fault(fault: Fault) -> Iterator[RenderableType]:
    """Show what happened, where, what the rank wrote last, and what to do."""
    yield prose(sentence(fault.what).plain)
    if fault.where is not None:
        yield prose(f"at {fault.where}")
    yield from (indented(Text(line, style="dim")) for line in fault.details)
    if fault.others is not None:
        yield prose(fault.others)
    if fault.todo:
        yield section("What to do", Group(*(prose(line) for line in fault.todo)))


def _compared(run: Run) -> RenderableType | None:
    rows = [row for row in (_step_row(run), *_memory_rows(run)) if row]
    columns = [Column(""), Column("predicted", "right"), Column("measured", "right"), Column("error", "right")]
    if not rows:
        return None
    table = Grid(columns, rows).without_empty(UNKNOWN)
    return section("Predicted against measured", Group(table, *_corrected(run.predicted)))


def _corrected(predicted: Predicted | None) -> Iterator[RenderableType]:
    """Say that earlier runs moved the predicted step."""
    if predicted is not None and predicted.correction is not None:
        said = correction_in_words(predicted.correction)
        yield prose(f"The predicted step is the models' {said.value}: {said.why}")


def _step_row(run: Run) -> Row | None:
    if run.step is None:
        return None
    expected = UNKNOWN
    if run.predicted is not None:
        low, high = run.predicted.step_seconds_range
        expected = f"{seconds(run.predicted.step_seconds)} ({seconds_range(low, high)})"
    return Row(("step", expected, _step(run.step), _error(run.errors.step_pct)))


def _memory_rows(run: Run) -> Iterator[Row]:
    cost, errors = run.predicted.memory if run.predicted else None, run.errors
    measured = (
        ("GPU memory in use", cost.total if cost else None, "device_used", errors.device_memory_pct),
        (
            "allocated by torch",
            cost.total - cost.context if cost else None,
            "peak_allocated",
            errors.allocated_memory_pct,
        ),
    )
    for label, expected, field, error in measured:
        most = _most(run.ranks, field)
        if most is not None:
            yield Row((label, memory(expected), memory(most), _error(error)))


def _ranks(ranks: Sequence[RankRun]) -> RenderableType | None:
    if not ranks:
        return None
    columns = [
        Column("ranks"),
        Column("steps", "right"),
        Column("step, median (10-90 %)", "right"),
        Column("allocated", "right"),
        Column("reserved", "right"),
        Column("in use", "right"),
        Column("host", "right"),
        Column("exit", "right"),
    ]
    alike = folded(ranks, _cells)
    slowest = sorted(alike, key=lambda group: group[0].step.median if group[0].step else 0, reverse=True)[:MOST_RANKS]
    shown = alike if len(alike) <= MOST_RANKS else slowest
    rows = [Row((ids([str(rank.rank) for rank in same]), *_cells(first))) for first, same in shown]
    left_out = len(ranks) - sum(len(same) for _, same in shown)
    more = [Text(f"and {plural(left_out, 'faster rank')}: report.json has all", style="dim")] if left_out else []
    return section("Ranks (memory: peaks)", Group(Grid(columns, rows).without_empty(UNKNOWN), *more))


def _cells(rank: RankRun) -> tuple[str, ...]:
    return (
        str(rank.steps),
        UNKNOWN if rank.step is None else _step(rank.step),
        memory(rank.peak_allocated),
        memory(rank.peak_reserved),
        memory(rank.device_used),
        memory(rank.peak_rss),
        UNKNOWN if rank.exit_code is None else str(rank.exit_code),
    )


def _one_process(run: Run) -> RenderableType | None:
    """Show of a plain script what was proven before the start, and the loss over all ranks."""
    if run.proof is None and not run.losses:
        return None
    proof = "not made (--unchecked)" if run.proof is None else in_words(run.proof, run.plan.ranks)
    rows = [("proof", proof)]
    if run.losses:
        shown = ", ".join(f"{_value(one.loss)} ({one.backward})" for one in (run.losses[0], *run.losses[-2:]))
        rows.append(("loss over all ranks (backward pass)", shown))
    return section("A script for one process", labelled(rows))


def _changes(changes: Sequence[Change]) -> RenderableType | None:
    """Say where plan and script differ, and which was used."""
    if not changes:
        return None
    rows = [(change.argument, _change(change)) for change in changes]
    return section("Script and plan", labelled(rows))


def _libraries(became: Sequence[Became]) -> Iterator[RenderableType]:
    """Say what each library became under the plan, asked of its live objects."""
    for name in dict.fromkeys(one.library for one in became):
        rows = [(one.what, _became(one)) for one in became if one.library == name]
        yield section(f"{name}, as its live objects say", labelled(rows))


def _became(one: Became) -> str:
    where = "" if one.ranks == (0,) else f" on {plural(len(one.ranks), 'rank')}"
    if one.became == one.wanted:
        return f"{_value(one.became)}, as planned"
    return f"{_value(one.became)}{where}, where the plan has {_value(one.wanted)}"


def _change(change: Change) -> str:
    if change.script is None and change.used == "plan":
        return f"{_value(change.plan)}, from the plan; the script leaves it open"
    script = "not set in the script" if change.script is None else f"{_value(change.script)} in the script"
    plan = "not set in the plan" if change.plan is None else f"{_value(change.plan)} in the plan"
    return f"{plan}, {script}: the {change.used}'s was used"


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _step(step: StepTime) -> str:
    return f"{seconds(step.median)} ({seconds_range(step.low, step.high)})"


def _error(pct: float | None) -> Text:
    if pct is None:
        return Text(UNKNOWN, style="dim")
    style = "green" if abs(pct) <= 10 else "yellow" if abs(pct) <= 25 else "red"
    return Text(percent(pct / 100, signed=True), style=style)


def _most(ranks: Sequence[RankRun], field: str) -> int | None:
    known = [getattr(rank, field) for rank in ranks if getattr(rank, field) is not None]
    return max(known, default=None)

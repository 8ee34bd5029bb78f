"""A recommendation as text: what `advisor recommend` shows."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from advisor.report.bars import Bars
from advisor.report.candidates import candidates_section, lacking
from advisor.report.findings import findings_section
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
from advisor.report.plan import (
    CHECKPOINTING,
    PRECISION,
    SCRIPT,
    batch_in_words,
    devices,
    devices_in_words,
    gradients_in_words,
    launch_in_words,
    strategy_in_words,
)
from advisor.report.scaling import scaling_section
from advisor.rules.format import count, memory, memory_column, plural, seconds, seconds_column, seconds_range
from advisor.rules.machine import LIVE, Machine
from advisor.rules.plan import Assumption, Finding, Memory, Plan, Predicted, Recommendation
from advisor.rules.plan_name import strategy


def recommendation_report(recommendation: Recommendation, machine: Machine, *, again: str) -> RenderableType:
    """Show the verdict and what to type, the plan and its cost, what it was chosen from, findings and assumptions.

    `again` is the command that gives this answer once more.
    """
    plan, predicted, findings = recommendation.plan, recommendation.predicted, recommendation.findings
    if plan is None or predicted is None:
        answer = [
            _verdict_line(recommendation),
            _shortfall(recommendation, machine),
            _would_fit(recommendation),
            findings_section(findings, answered=[finding.code for finding in findings if _ways(finding)]),
            candidates_section(recommendation.candidates, None),
        ]
    else:
        commands = [Command(f"{again} -o plan.json"), Command(recommendation.command)]
        answer = [
            Group(_verdict_line(recommendation), Text(), *map(indented, commands)),
            _plan(plan, recommendation, machine),
            _cost(predicted),
            _memory("Memory per rank at its peak", predicted.memory, machine),
            candidates_section(recommendation.candidates, plan),
            scaling_section(recommendation.scaling),
            findings_section(findings),
        ]
    return stack(*answer, _assumptions(recommendation.assumptions), _again(again, machine))


def recommendation_verdict(recommendation: Recommendation) -> Text:
    """Give the verdict in one line."""
    return one_line(_verdict_line(recommendation))


def _verdict_line(recommendation: Recommendation) -> Text:
    word, style = ("Fits", "bold green") if recommendation.verdict == "fits" else ("Does not fit", "bold red")
    return Text.assemble((f"{word}: ", style), sentence(recommendation.summary))


def _plan(plan: Plan, recommendation: Recommendation, machine: Machine) -> RenderableType:
    rows = [
        ("devices", devices_in_words(plan, len(machine.gpus))),
        ("strategy", strategy_in_words(plan)),
        ("batch", batch_in_words(plan, recommendation.job.seq)),
        ("precision", PRECISION[plan.precision] if plan.precision else SCRIPT),
        ("checkpointing", CHECKPOINTING[plan.activation_checkpointing]),
    ]
    if plan.cpu_offload:
        rows.append(("offload", "states and optimizer step on the CPU"))
    if plan.strategy != "single":
        rows.append(("gradients", gradients_in_words(plan)))
    rows.append(("launch", launch_in_words(plan)))
    rows += [(name, f"{value}{_reason(name, recommendation)}") for name, value in sorted(plan.env.items())]
    return section("Plan", labelled(rows))


def _reason(variable: str, recommendation: Recommendation) -> str:
    """Find the finding that set a variable."""
    for finding in recommendation.findings:
        if variable in finding.facts.get("env", {}):
            return f": {finding.message} ({finding.code})"
    return ""


def _cost(predicted: Predicted) -> RenderableType:
    low, high = predicted.step_seconds_range
    parts = [("compute", predicted.compute_seconds), ("exposed communication", predicted.exposed_communication_seconds)]
    speed = f"{_tokens(predicted)}{_rounded(predicted.samples_per_second):g} samples/s"
    hidden = predicted.communication_seconds - predicted.exposed_communication_seconds
    step = f"{seconds(predicted.step_seconds)} a step ({seconds_range(low, high)})"
    lines = [f"{step}, {speed}, from {predicted.source} numbers"]
    if hidden > 0.005 * predicted.step_seconds:
        lines.append(
            f"{seconds(predicted.communication_seconds)} of communication, {seconds(hidden)} of it behind compute"
        )
    return section("Predicted", *map(prose, lines), Bars(parts, predicted.step_seconds, seconds_column))


def _tokens(predicted: Predicted) -> str:
    """Tell the tokens per second, unless samples are no sequences."""
    if predicted.tokens_per_second == predicted.samples_per_second:
        return ""
    return f"{count(_rounded(predicted.tokens_per_second))} tokens/s, "


def _memory(title: str, cost: Memory, machine: Machine) -> RenderableType:
    names = ("parameters", "gradients", "optimizer", "activations", "logits", "communication", "context")
    parts = [(name, getattr(cost, name)) for name in names]
    bars = Bars(parts, cost.total, memory_column, ("available", cost.available))
    host = f"{memory(cost.host)} of host memory per rank as well" if cost.host else ""
    if host and machine.host.memory_available is not None:
        host += f"; {memory(machine.host.memory_available)} available"
    return section(title, bars, *([prose(host)] if host else []))


def _shortfall(recommendation: Recommendation, machine: Machine) -> RenderableType | None:
    """Show the candidate that comes nearest, and what it lacks."""
    if not recommendation.candidates:
        return None
    nearest = min(recommendation.candidates, key=lacking)
    plan, needed = nearest.plan, nearest.predicted.memory
    title = f"Nearest: {strategy(plan)} on {devices(plan)}, {plural(plan.samples, 'sample')} per rank"
    short = f"{memory(lacking(nearest))} too much: {memory(needed.total)} needed, {memory(needed.available)} available"
    return Group(_memory(title, needed, machine), indented(prose(short, "red")))


def _would_fit(recommendation: Recommendation) -> RenderableType | None:
    """Tabulate the changes that findings have priced, those that suffice first."""
    ways = [way for finding in recommendation.findings for way in _ways(finding)]
    if not ways:
        return None
    columns = [Column("change", folds=True), Column("add", folds=True), Column("memory", "right"), Column("fits")]
    rows = [
        Row((str(way["change"]), str(way["option"]), memory(way["needed"]), _yes(way["fits"])), _note(way))
        for way in sorted(ways, key=lambda way: way["fits"] is False)
    ]
    return section("What would fit (each change alone)", Grid(columns, rows))


def _ways(finding: Finding) -> list[dict[str, Any]]:
    """Read the remedies that a finding carries as facts: change, option, needed, fits, note."""
    return list(finding.facts.get("what_would_fit", ()))


def _yes(fits: bool | None) -> Text:
    if fits is None:
        return Text("perhaps", style="yellow")
    return Text("yes", style="green") if fits else Text("no", style="red")


def _note(way: dict[str, Any]) -> Text | None:
    return sentence(str(way["note"]), "dim") if way.get("note") else None


def _assumptions(assumptions: Sequence[Assumption]) -> RenderableType | None:
    if not assumptions:
        return None
    rows = [(assumption.what, f"{_value(assumption.value)}: {assumption.why}") for assumption in assumptions]
    return section("Assumed", labelled(rows))


def _again(again: str, machine: Machine) -> RenderableType:
    if machine.source != LIVE:
        return section("The same again", Command(again))
    probe = Command("advisor probe -o machine.json")
    return section("The same again, anywhere", probe, Command(f"{again} --machine machine.json"))


def _value(value: Any) -> str:
    """Show a number as it would be typed; long ones in short."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return count(value) if abs(value) >= 1e6 else f"{value:g}"


def _rounded(number: float) -> float:
    return float(f"{number:.3g}")

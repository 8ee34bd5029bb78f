"""What the trials before a run were, and why the plan was chosen."""

from rich.console import Group, RenderableType
from rich.text import Text

from advisor.report.layout import Column, Grid, Row, prose, section, sentence, stack
from advisor.rules.format import UNKNOWN, percent, plural, seconds, seconds_range
from advisor.rules.plan import Predicted
from advisor.rules.plan_name import strategy
from advisor.rules.trial import SURE, Calibrated, Timing, Tried


def calibrated_report(found: Calibrated) -> RenderableType:
    """Show the plan that trials chose, why, and all that was tried."""
    return stack(verdict_line(found), trials_section(found))


def verdict_line(found: Calibrated) -> Text:
    return Text.assemble(
        ("Chosen: ", "bold green"), sentence(f"{name(found.plan.env, strategy(found.plan))}: {found.why}")
    )


def trials_section(found: Calibrated) -> RenderableType:
    """Show each plan with what was predicted and measured, and what the trials cost."""
    columns = [
        Column("plan"),
        Column("predicted", "right"),
        Column("measured", "right"),
        Column("trials", "right"),
        Column("verdict", folds=True),
    ]
    rows = [_row(one) for one in found.tried]
    made = "" if found.recalled is None else f" on {found.recalled[:10]}, before an earlier run"
    spent = f"{plural(len(found.trials), 'trial')} in {seconds(found.spent)} of {seconds(found.budget)}{made}"
    alone = "" if found.floor is None else f"; without communication a step takes {seconds(found.floor)}"
    table = [Grid(columns, rows).without_empty(UNKNOWN)] if rows else [prose(sentence(found.why).plain)]
    return section(f"Trials: {spent}{alone}", Group(*table))


def name(env: dict[str, str], words: str) -> str:
    settings = " ".join(f"{variable}={value}" for variable, value in env.items() if variable != "NCCL_DEBUG")
    return f"{words}, {settings}" if settings else words


def _row(one: Tried) -> Row:
    return Row(
        (
            name(one.plan.env, strategy(one.plan)),
            _expected(one.predicted),
            _measured(one.timing),
            UNKNOWN if one.timing is None else str(one.timing.trials),
            one.verdict,
        )
    )


def _expected(predicted: Predicted | None) -> str:
    return UNKNOWN if predicted is None else seconds_range(*predicted.step_seconds_range)


def _measured(timing: Timing | None) -> str:
    return UNKNOWN if timing is None else f"{seconds(timing.median)} ±{percent(SURE * timing.noise)}"

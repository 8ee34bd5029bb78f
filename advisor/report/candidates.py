"""The table of candidates: what each would cost, and the number that rejected it."""

from collections.abc import Hashable, Sequence

from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.text import Text

from advisor.report.layout import Column, Grid, Row, section, sentence
from advisor.report.plan import batch, devices
from advisor.rules.format import count, memory, plural, seconds_range
from advisor.rules.plan import Candidate, Plan
from advisor.rules.plan_name import reduced_late, strategy

MOST_ROWS = 12
TIE = "tie: "  # how the reason of a candidate begins that is as good as the plan
COLUMNS = [
    Column(""),
    Column("strategy", folds=True),
    Column("devices", folds=True),
    Column("batch", "right"),
    Column("memory", "right"),
    Column("step", "right"),
]


def candidates_section(candidates: Sequence[Candidate], plan: Plan | None) -> RenderableType | None:
    """Tabulate the candidates in their order, at most twelve: the plan, the ties, then one of each kind first."""
    if not candidates:
        return None
    shown = _most_telling(candidates, plan)
    sequences = any(c.predicted.tokens_per_second != c.predicted.samples_per_second for c in candidates)
    speed = Column("tokens/s" if sequences else "samples/s", "right")
    table = Grid((*COLUMNS, speed), [_row(candidate, plan) for candidate in shown], note="why not")
    left_out = len(candidates) - len(shown)
    more = [Text(f"and {plural(left_out, 'more candidate')}: --json lists all", style="dim")] if left_out else []
    return section("Candidates (batch: micro-batch x accumulation; memory per rank)", Group(table, *more))


def lacking(candidate: Candidate) -> int:
    """Return by how many bytes a candidate needs more than each GPU has; negative where it fits."""
    return candidate.predicted.memory.total - candidate.predicted.memory.available


def same_plan(plan: Plan, other: Plan | None) -> bool:
    """Compare plans without their environment, which only the chosen one is given."""
    return other is not None and replace(plan, env={}) == replace(other, env={})


def _row(candidate: Candidate, plan: Plan | None) -> Row:
    chosen, predicted, rejected = same_plan(candidate.plan, plan), candidate.predicted, candidate.rejected
    tie = not chosen and (rejected is None or rejected.startswith(TIE))
    mark = Text("best", style="green") if chosen else Text("tie" if tie else "", style="cyan")
    fits = lacking(candidate) <= 0
    cells = (
        mark,
        strategy(candidate.plan),
        devices(candidate.plan),
        batch(candidate.plan),
        Text(memory(predicted.memory.total), style="" if fits else "red"),
        seconds_range(*predicted.step_seconds_range) if fits else "-",
        count(float(f"{predicted.tokens_per_second:.3g}")) if fits else "-",
    )
    return Row(cells, sentence(rejected.removeprefix(TIE), "dim") if rejected else None)


def _most_telling(candidates: Sequence[Candidate], plan: Plan | None) -> list[Candidate]:
    """Keep the order, and of equal kinds the first, until twelve are found."""
    kinds: set[Hashable] = set()
    first, rest = [], []
    for place, candidate in enumerate(candidates):
        kind = _kind(candidate.plan)
        if same_plan(candidate.plan, plan) or candidate.rejected is None or kind not in kinds:
            first.append(place)
        else:
            rest.append(place)
        kinds.add(kind)
    return [candidates[place] for place in sorted([*first, *rest][:MOST_ROWS])]


def _kind(plan: Plan) -> Hashable:
    return plan.strategy, plan.reshard_after_forward, reduced_late(plan), len(plan.gpus) * plan.nodes, plan.cpu_offload

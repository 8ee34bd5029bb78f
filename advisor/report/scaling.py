"""How far more GPUs help: a table of sizes, and the point from which more do not."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from advisor.report.layout import Column, Grid, prose, section
from advisor.rules.format import percent, plural, seconds
from advisor.rules.plan import Scale
from advisor.rules.scaling import HELPS, enough

COLUMNS = [
    Column("GPUs", "right"),
    Column("strategy"),
    Column("step", "right"),
    Column("samples/s", "right"),
    Column("more", "right"),
    Column("efficiency", "right"),
    Column("$ per 1M samples", "right"),
]
NAMES = {"single": "one process", "ddp": "DDP", "fsdp": "FSDP", "hsdp": "HSDP"}
EMPTY = ""


def scaling_section(scales: Sequence[Scale]) -> RenderableType | None:
    """Tabulate the best plan of each size where there is more than one, and say where more stop helping."""
    if len(scales) < 2:
        return None
    table = Grid(COLUMNS, [_row(scale) for scale in scales]).without_empty(EMPTY)
    return section("More GPUs (the same global batch)", table, prose(point(scales)))


def point(scales: Sequence[Scale]) -> str:
    """Say up to which size more GPUs help, and what those beyond it do."""
    last = enough(scales)
    if last is None or last is scales[-1]:
        steady = all(scale.gain is None or scale.gain >= HELPS for scale in scales)
        return "Every step up helps." if steady else "The largest is the fastest, though not every step up helps."
    beyond = scales[scales.index(last) + 1 :]
    worst = min(scale.samples_per_second for scale in beyond) / last.samples_per_second - 1
    if worst <= -HELPS:
        return f"More than {size(last)} hurt: {percent(worst, signed=True)} samples/s at worst."
    return f"More than {size(last)} do not help: less than {percent(HELPS)} more samples/s."


def size(scale: Scale) -> str:
    """Name a size: `4 GPUs`, `2 x 8 GPUs`."""
    return f"{scale.nodes} x {scale.gpus} GPUs" if scale.nodes > 1 else plural(scale.gpus, "GPU")


def _row(scale: Scale) -> tuple[str | Text, ...]:
    gain: str | Text = EMPTY
    if scale.gain is not None:
        style = "green" if scale.gain >= HELPS else "red" if scale.gain <= -HELPS else "yellow"
        gain = Text(percent(scale.gain, signed=True), style=style)
    cost = scale.dollars_per_million_samples
    return (
        f"{scale.nodes} x {scale.gpus}" if scale.nodes > 1 else f"{scale.gpus}",
        NAMES[scale.strategy],
        seconds(scale.step_seconds),
        f"{float(f'{scale.samples_per_second:.3g}'):g}",
        gain,
        percent(scale.efficiency),
        EMPTY if cost is None else f"{float(f'{cost:.3g}'):g}",
    )

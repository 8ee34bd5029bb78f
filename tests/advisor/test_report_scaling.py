"""The table of sizes in a recommendation's report."""

import pytest

from advisor.report.console import render
from advisor.report.scaling import scaling_section
from advisor.rules.plan import Scale, Strategy


def scale(gpus: int, rate: float, gain: float | None, *, nodes: int = 1, dollars: float | None = None) -> Scale:
    strategy: Strategy = "single" if gpus == 1 else "hsdp" if nodes > 1 else "ddp"
    return Scale(
        gpus=gpus,
        nodes=nodes,
        strategy=strategy,
        step_seconds=64 / rate,
        samples_per_second=rate,
        efficiency=rate / gpus / nodes / 40,
        gain=gain,
        dollars_per_million_samples=dollars,
    )


HELPING = (scale(1, 40, None), scale(2, 76, 0.9), scale(4, 140, 0.84))
FLAT = (*HELPING, scale(8, 144, 0.03))
HURTING = (*HELPING, scale(8, 100, -0.29))


def shown(scales: tuple[Scale, ...], width: int = 80) -> str:
    section = scaling_section(scales)
    return "" if section is None else render(section, width=width, colour=False)


@pytest.mark.parametrize("width", [80, 140])
def test_each_size_has_a_line_with_what_it_gains_and_costs(width: int) -> None:
    text = shown((scale(8, 240, None, dollars=38.0), scale(8, 400, 0.67, nodes=2, dollars=45.6)), width)
    assert [line.split() for line in text.splitlines()[2:4]] == [
        ["8", "DDP", "267", "ms", "240", "75", "%", "38"],
        ["2", "x", "8", "HSDP", "160", "ms", "400", "+67", "%", "62", "%", "45.6"],
    ]
    assert max(map(len, text.splitlines())) <= width


def test_costs_are_left_out_without_a_price() -> None:
    assert "$" not in shown(HELPING)


@pytest.mark.parametrize(
    ("scales", "words"),
    [
        (HELPING, "Every step up helps."),
        (FLAT, "More than 4 GPUs do not help: less than 5 % more samples/s."),
        (HURTING, "More than 4 GPUs hurt: -29 % samples/s at worst."),
        ((*HURTING, scale(8, 300, 1.14, nodes=2)), "The largest is the fastest, though not every step up helps."),
    ],
)
def test_the_point_from_which_more_do_not_help_is_said(scales: tuple[Scale, ...], words: str) -> None:
    assert shown(scales).splitlines()[-1].strip() == words


def test_one_size_needs_no_table() -> None:
    assert shown(HELPING[:1]) == ""

"""More than half of what the GPUs could do is lost: together they are not half as fast as their number.

## What it finds
A plan on several GPUs whose throughput is less than half of their number times that of the best plan on one.

## Why it matters
What is paid per GPU and hour then costs more than twice as much per sample as on one GPU. If time presses that may be
right; if several runs wait, one GPU for each finishes them sooner.

## What to do
For several runs (other seeds, other settings): one GPU each, `--gpus 1`. For one run: more work per GPU, or faster
links.

## Source
The candidates and the scaling table of the same report
"""

from collections.abc import Iterator

from advisor.rules.alternatives import fastest
from advisor.rules.format import percent, seconds
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

EFFICIENT = 0.5


@rule("PAR122", "scaling-below-half")
def check(case: Case) -> Iterator[Finding]:
    plan, predicted = case.plan, case.predicted
    if plan is None or predicted is None or plan.ranks == 1 or plan.launcher.device == "cpu":
        return
    alone = fastest([candidate for candidate in case.candidates if candidate.plan.strategy == "single"])
    if alone is None:
        return
    times = alone.predicted.step_seconds / predicted.step_seconds
    if times >= EFFICIENT * plan.ranks:
        return
    yield Finding(
        code="PAR122",
        name="scaling-below-half",
        severity="info",
        message=(
            f"{plan.ranks} GPUs are {times:.2g} times as fast as one ({percent(times / plan.ranks)} of their number): "
            f"{seconds(predicted.step_seconds)} per step, {seconds(alone.predicted.step_seconds)} on one"
        ),
        facts={"ranks": plan.ranks, "times": times, "single_step_seconds": alone.predicted.step_seconds},
        remedy="for several runs type --gpus 1 for each; for one run give a larger --global-batch",
    )

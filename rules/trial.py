"""What short measured runs of plans say: how long a step takes, how sure that is, and which plan to take."""

import statistics
from collections.abc import Sequence
from math import hypot, sqrt
from typing import Literal

from advisor.rules.machine import Value
from advisor.rules.plan import Plan, Predicted
from advisor.rules.recommend import demand, simplicity

Purpose = Literal["as-is", "no-communication", "candidate", "setting"]
Outcome = Literal["measured", "out-of-memory", "failed", "too-long", "ended-early", "wants-to-write"]

# Relative standard deviation of one plan's median from trial to trial, before trials have shown their own: repeated
# trials of two H200 had medians within about 4 % of each other.
REPEATED = 0.012
SURE = 2.0  # standard errors of a difference that is no noise
MAD_TO_SIGMA = 1.4826  # of a normal distribution
MEDIAN_TO_MEAN = 1.2533  # its standard error, in those of the mean: sqrt(pi / 2)


class Trial(Value, frozen=True, kw_only=True):
    """One short run of the script under a plan."""

    plan: Plan
    purpose: Purpose
    outcome: Outcome
    said: str | None = None  # where it was not measured
    steps: tuple[float, ...] = ()  # seconds of each optimizer step of the slowest rank, warm-up left out
    seconds: float  # in all
    start_seconds: float | None = None  # until the first step began to be measured
    peak_allocated: int | None = None  # bytes
    device_used: int | None = None  # bytes


class Timing(Value, frozen=True, kw_only=True):
    """Seconds of a step of one plan by all its trials."""

    median: float
    noise: float  # standard error of the median, relative
    trials: int
    steps: int


class Tried(Value, frozen=True, kw_only=True):
    """A plan, and what came of its trials."""

    plan: Plan
    predicted: Predicted | None  # before it was tried
    timing: Timing | None  # None: it was not tried, or one of its trials did not run to the end
    verdict: str


class Calibrated(Value, frozen=True, kw_only=True):
    """What `calibration.json` holds."""

    version: int = 1
    script: str
    arguments: tuple[str, ...]
    budget: float  # seconds
    spent: float  # seconds, all of it
    import_seconds: float  # of `spent`: what the script imports, once for all trials
    plan: Plan
    predicted: Predicted | None  # of a plan that was measured
    why: str  # the plan was chosen, one sentence
    recalled: str | None = None  # when the trials were made, if before an earlier run: ISO 8601 with offset
    floor: float | None = None  # seconds of a step without communication
    tried: tuple[Tried, ...] = ()  # the chosen plan first
    trials: tuple[Trial, ...] = ()  # in their order


def timing(trials: Sequence[Trial], repeated: float = REPEATED) -> Timing | None:
    """Sum up the measured trials of one plan: the median of their medians, and how far off that may be.

    Its error has two parts: the spread of steps inside a trial, and that from trial to trial, `repeated`.
    """
    measured = [trial.steps for trial in trials if trial.outcome == "measured" and trial.steps]
    if not measured:
        return None
    medians = [statistics.median(steps) for steps in measured]
    inside = [step / median - 1 for steps, median in zip(measured, medians, strict=True) for step in steps]
    spread = MAD_TO_SIGMA * statistics.median(map(abs, inside)) * MEDIAN_TO_MEAN / sqrt(len(inside))
    return Timing(
        median=statistics.median(medians),
        noise=hypot(spread, repeated / sqrt(len(medians))),
        trials=len(medians),
        steps=len(inside),
    )


def timings(plans: Sequence[tuple[Plan, Sequence[Trial]]]) -> list[tuple[Plan, Timing]]:
    """Sum up plans of which every trial was measured; how far trials of one plan differ is learnt from all of them.

    Example: medians of 0.9 and 1.1 s of one plan make every plan's median uncertain by 14 % divided by the root of its
    number of trials.
    """
    whole = [(plan, trials) for plan, trials in plans if all(trial.outcome == "measured" for trial in trials)]
    squares, freedom = 0.0, 0
    for _, trials in whole:
        medians = [statistics.median(trial.steps) for trial in trials if trial.steps]
        if len(medians) > 1:
            squares += (len(medians) - 1) * (statistics.stdev(medians) / statistics.fmean(medians)) ** 2
            freedom += len(medians) - 1
    repeated = max(REPEATED, sqrt(squares / freedom)) if freedom else REPEATED
    return [(plan, known) for plan, trials in whole if (known := timing(trials, repeated)) is not None]


def margin(one: Timing, other: Timing) -> float:
    """Return the relative difference that noise alone may make between two plans."""
    return SURE * hypot(one.noise, other.noise)


def is_faster(one: Timing, other: Timing) -> bool:
    """Say whether one plan is faster by more than the noise."""
    return one.median < other.median * (1 - margin(one, other))


def settle(timings: Sequence[tuple[Plan, Timing]]) -> Plan:
    """Return the plan to take: of those that the fastest does not beat by more than the noise, the simplest."""
    _, best = min(timings, key=lambda one: one[1].median)
    near = [one for one in timings if not is_faster(best, one[1])]
    return min(near, key=lambda one: (*how_simple(one[0]), one[1].median))[0]


def how_simple(plan: Plan) -> tuple[int, float, tuple[int, ...]]:
    """Order plans by what they set: variables, the strategy, its settings."""
    return len(plan.env), demand(plan), simplicity(plan)


def contenders(timings: Sequence[tuple[Plan, Timing]]) -> list[Plan]:
    """Return the plans between which more trials may still decide: all that tie with the fastest, it included."""
    _, best = min(timings, key=lambda one: one[1].median)
    return [plan for plan, one in timings if not is_faster(best, one)]

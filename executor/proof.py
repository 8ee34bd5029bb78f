"""Whether the first steps of a plain script on several ranks equal those of one process."""

from collections.abc import Sequence
from itertools import zip_longest

from advisor.executor.records import ProofStep
from advisor.rules.format import plural
from advisor.rules.machine import Value

# Relative, in the first step: sums in another order, a hundred roundings. Adam makes of a small difference in a small
# gradient one of a whole step, so later steps may differ more.
FIRST = {"float64": 1e-9, "float32": 2e-5, "bfloat16": 3e-2, "float16": 4e-3}
LATER, MOST = 10.0, 2  # times as much for each step, up to the third
# Times what roundings in the first weights, a tenth of the first step's tolerance, make of one process's later steps;
# where that is more than MOST_BY_ROUNDING they are compared to within that much.
BY_ROUNDING, MOST_BY_ROUNDING = 10.0, 0.1
SMALL_LOSS, SMALL_NORM = 1e-2, 1e-6  # differences of smaller ones count as if they were so large


class Proof(Value, frozen=True, kw_only=True):
    """What the comparison of several ranks with one process said."""

    steps: int
    largest: float  # relative difference of a loss or a gradient's norm
    tolerance: float  # relative, of the first step
    loss: str = "mean"  # "sum": the script's losses are sums over samples
    rounding: float | None = None  # the largest difference that roundings in the first weights make, if asked for


def difference(one: Sequence[ProofStep], many: Sequence[ProofStep], nudged: Sequence[ProofStep] = ()) -> str | None:
    """Say where the ranks differ from one process by more than rounding does; None: nowhere.

    `nudged` are the steps of one process whose weights began some roundings apart: some trainings make much of them.
    """
    allowed = tolerance(one)
    for number, (mine, theirs) in enumerate(zip_longest(one, many)):
        if mine is None or theirs is None or len(mine.losses) != len(theirs.losses):
            return f"in step {number + 1} one of them makes other passes than the other"
        grown = allowed * LATER ** min(number, MOST)
        for (what, a, b, small), explained in zip(_pairs(mine, theirs), _explained(mine, nudged[number:]), strict=True):
            if not relative(a, b, small) <= max(grown, explained if number else 0.0):
                return f"in step {number + 1} the {what} is {a:.6g} in one process and {b:.6g} on all ranks"
    return None


def _explained(mine: ProofStep, nudged: Sequence[ProofStep]) -> list[float]:
    """Return the relative difference of each number of a step that a rounding explains."""
    if not nudged or len(nudged[0].losses) != len(mine.losses):
        return [0.0] * (len(mine.losses) + 1)
    found = (relative(a, b, small) for _, a, b, small in _pairs(mine, nudged[0]))
    return [min(BY_ROUNDING * one, MOST_BY_ROUNDING) for one in found]


def proof_of(one: Sequence[ProofStep], many: Sequence[ProofStep], loss: str, nudged: Sequence[ProofStep] = ()) -> Proof:
    return Proof(
        steps=len(one),
        largest=largest(one, many),
        tolerance=tolerance(one),
        loss=loss,
        rounding=largest(one, nudged) if nudged else None,
    )


def largest(one: Sequence[ProofStep], other: Sequence[ProofStep]) -> float:
    """Return the largest relative difference of two runs that make the same passes."""
    pairs = (pair for mine, theirs in zip(one, other, strict=False) for pair in _pairs(mine, theirs))
    return max(relative(a, b, small) for _, a, b, small in pairs)


def _pairs(one: ProofStep, other: ProofStep) -> list[tuple[str, float, float, float]]:
    losses = [("loss", a, b, SMALL_LOSS) for a, b in zip(one.losses, other.losses, strict=False)]
    return [*losses, ("norm of the gradients", one.norm, other.norm, SMALL_NORM)]


def relative(one: float, other: float, small: float) -> float:
    """Return the difference of two numbers, relative to the larger; equal infinities and NaNs do not differ."""
    if one == other or (one != one and other != other):  # noqa: PLR0124
        return 0.0
    return abs(one - other) / max(abs(one), abs(other), small)


def tolerance(steps: Sequence[ProofStep]) -> float:
    """Return the relative difference that rounding explains in the first step, by the gradients' precision."""
    return max((FIRST.get(kind, 0.0) for step in steps for kind in step.dtypes), default=FIRST["float32"])


def in_words(proof: Proof, ranks: int) -> str:
    return (
        f"{plural(proof.steps, 'step')} on {ranks} ranks equal to one process, largest difference {proof.largest:.0e}"
        + ("" if proof.rounding is None else f" (roundings in the first weights make {proof.rounding:.0e})")
        + (", with losses that are sums over samples" if proof.loss == "sum" else "")
    )

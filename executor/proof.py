"""Whether the first steps of a plain script on several ranks equal those of one process."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal

from advisor.executor.records import ProofStep
from advisor.rules.format import plural
from advisor.rules.machine import Value

# Relative, in the first step: sums in another order, a hundred roundings. Adam makes of a small difference in a small
# gradient one of a whole step, so later steps may differ more.
FIRST = {"float64": 1e-9, "float32": 2e-5, "bfloat16": 3e-2, "float16": 4e-3}
LATER, MOST = 10.0, 2  # times as much for each step, up to the third
# Or, after the first step, so many times the difference that weights make which began some roundings apart, a tenth of
# the first step's tolerance; where that is more than MOST_BY_ROUNDING, steps are compared to within that much.
BY_ROUNDING, MOST_BY_ROUNDING = 10.0, 0.1
SMALL_LOSS, SMALL_NORM = 1e-2, 1e-6  # differences of smaller ones count as if they were so large

# What a loss is: a mean of those of slices, or their sum; or made of the whole batch, for which calls of models are
# divided along the first dim, along the second, or inside of the models.
Loss = Literal["mean", "sum", "whole", "whole-dim-1", "whole-inside"]
HOW: dict[Loss, str] = {
    "mean": "",
    "sum": ", with losses that are sums over samples",
    "whole": ", with whole batches and each call of a model divided",
    "whole-dim-1": ", with whole batches and each call of a model divided along the second dim",
    "whole-inside": ", with whole batches and each call of a model's parts divided",
}
WHOLE: tuple[Loss, ...] = ("whole", "whole-dim-1", "whole-inside")


class Proof(Value, frozen=True, kw_only=True):
    """What the comparison of several ranks with one process said."""

    steps: int
    largest: float  # relative difference of a loss or a gradient's norm
    tolerance: float  # relative, of the first step
    loss: Loss = "mean"


def difference(one: Sequence[ProofStep], many: Sequence[ProofStep], nudged: Sequence[ProofStep] = ()) -> str | None:
    """Say where the ranks differ from one process by more than rounding does; None: nowhere.

    `nudged` is one process whose weights began some roundings apart: some models make much of that in a few steps.
    """
    allowed = tolerance(one)
    for number, (mine, theirs) in enumerate(zip_longest(one, many)):
        if mine is None or theirs is None or len(mine.losses) != len(theirs.losses):
            return f"in step {number + 1} one of them makes other passes than the other"
        explained = allowed * LATER ** min(number, MOST)
        if number and number < len(nudged) and len(nudged[number].losses) == len(mine.losses):
            apart = max(relative(a, b, small) for _, a, b, small in _pairs(mine, nudged[number]))
            explained = max(explained, min(BY_ROUNDING * apart, MOST_BY_ROUNDING))
        for what, a, b, small in _pairs(mine, theirs):
            if not relative(a, b, small) <= explained:
                return f"in step {number + 1} the {what} is {a:.6g} in one process and {b:.6g} on all ranks"
    return None


def proof_of(one: Sequence[ProofStep], many: Sequence[ProofStep], loss: Loss) -> Proof:
    largest = max(
        relative(a, b, small) for mine, theirs in zip(one, many, strict=True) for _, a, b, small in _pairs(mine, theirs)
    )
    return Proof(steps=len(one), largest=largest, tolerance=tolerance(one), loss=loss)


def _pairs(one: ProofStep, other: ProofStep) -> list[tuple[str, float, float, float]]:
    losses = [("loss", a, b, SMALL_LOSS) for a, b in zip(one.losses, other.losses, strict=True)]
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
        + HOW[proof.loss]
    )

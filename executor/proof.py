"""Whether the first steps of a plain script on several ranks equal those of one process."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal

from advisor.executor.records import ProofStep
from advisor.rules.format import plural
from advisor.rules.machine import Value

# Relative, in the first step: sums in another order, a hundred roundings. A mean over tokens or a Dice loss, taken for
# the mean of its slices', was seen to differ by as little as 2.5e-5 there.
FIRST = {"float64": 1e-9, "float32": 2e-5, "bfloat16": 3e-2, "float16": 4e-3}
SURE = 0.25  # of that is rounding in any step; more only so far as rounding is seen to make as much in this training:
# so many times the difference that weights make which began some roundings apart, after the first step up to MOST.
BY_ROUNDING, MOST = 10.0, 0.1
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


def difference(
    one: Sequence[ProofStep], many: Sequence[ProofStep], nudged: Sequence[ProofStep] | None = None
) -> str | None:
    """Say where the ranks differ from one process by more than rounding does; None: nowhere.

    `nudged` is one process whose weights began some roundings apart: some models make much of that in a few steps.
    Without it, say where they differ by more than rounding can explain in any training.
    """
    sure = SURE * tolerance(one)
    for number, (mine, theirs) in enumerate(zip_longest(one, many)):
        if mine is None or theirs is None or len(mine.losses) != len(theirs.losses):
            return f"in step {number + 1} one of them makes other passes than the other"
        explained = MOST if number else tolerance(one)
        if nudged is not None:
            explained = max(sure, min(BY_ROUNDING * _apart(mine, nudged[number : number + 1]), explained))
        for what, a, b, small in _pairs(mine, theirs):
            if not relative(a, b, small) <= explained:
                return f"in step {number + 1} the {what} is {a:.6g} in one process and {b:.6g} on all ranks"
    return None


def surely_equal(one: Sequence[ProofStep], many: Sequence[ProofStep]) -> bool:
    """Say whether no step differs by more than rounding does in every training."""
    return difference(one, many, nudged=()) is None


def _apart(step: ProofStep, nudged: Sequence[ProofStep]) -> float:
    """Return the largest difference that weights some roundings apart have made in this step; 0 if none is told."""
    same = [other for other in nudged if len(other.losses) == len(step.losses)]
    return max((relative(a, b, small) for other in same for _, a, b, small in _pairs(step, other)), default=0.0)


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
    as_rounding = ", no more than rounding makes in this training" if proof.largest > SURE * proof.tolerance else ""
    return (
        f"{plural(proof.steps, 'step')} on {ranks} ranks equal to one process, largest difference {proof.largest:.0e}"
        + as_rounding
        + HOW[proof.loss]
    )

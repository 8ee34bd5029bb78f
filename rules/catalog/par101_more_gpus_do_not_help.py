"""The plan uses fewer GPUs than the machine has, because more would not be faster.

## What it finds
A recommended plan on part of the machine.

## Why it matters
Each optimizer step reduces the gradients over all ranks. Where the extra GPUs hang on slow links, or the batch per rank
becomes too small to hide the traffic, a step takes longer with more of them.

## What to do
Use the rest for another run, or give each GPU more work: a larger --global-batch (which changes the training), or a
longer sequence.

## Source
The candidates of the same report, with their predicted step times
"""

from collections.abc import Iterator

from advisor.rules.format import plural, seconds
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("PAR101", "more-gpus-do-not-help")
def check(case: Case) -> Iterator[Finding]:
    plan, predicted = case.plan, case.predicted
    if plan is None or predicted is None:
        return
    more = [c.predicted.step_seconds for c in case.candidates if c.plan.ranks > plan.ranks and c.predicted.memory.fits]
    if not more:
        return
    all_ranks = max(c.plan.ranks for c in case.candidates)
    yield Finding(
        code="PAR101",
        name="more-gpus-do-not-help",
        severity="info",
        message=(
            f"{plural(plan.ranks, 'GPU')} of up to {all_ranks} suffice: {seconds(predicted.step_seconds)} per step, "
            f"against {seconds(min(more))} with the best plan on more"
        ),
        facts={"ranks": plan.ranks, "step_seconds": predicted.step_seconds, "best_with_more": min(more)},
        remedy="use the other GPUs for another run, or give each more work with a larger --global-batch",
    )

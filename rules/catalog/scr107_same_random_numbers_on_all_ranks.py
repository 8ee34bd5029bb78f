"""All ranks draw the same random numbers.

## What it finds
`torch.manual_seed` with one number for all ranks, in a script whose model has dropout, and that seeds nothing by rank.

## Why it matters
Dropout masks and augmentations are the same on all ranks: the batch is larger, its noise is not. With
DistributedDataParallel equal seeds are not needed for equal weights, since rank 0's are broadcast.

## What to do
`torch.manual_seed(seed + rank)`, behind the building of the model where each rank initialises by itself.

## Source
https://docs.pytorch.org/docs/stable/notes/randomness.html
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.saves import BY_RANK

RULE = ("SCR107", "same-random-numbers-on-all-ranks")
SEEDS = ("torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "lightning.seed_everything")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    source = case.source
    if source is None or not source.averages_gradients:
        return
    seeds = [event for event in source.calls(*SEEDS) if event.args and not event.alone]
    random = any(event.name.startswith(("torch.nn.Dropout", "torch.nn.functional.dropout")) for event in source.events)
    by_rank = any(event.args[0].taint & BY_RANK for event in seeds)
    fixed = [event for event in seeds if event.args[0].known and event.by_rank is None]
    if not random or by_rank or not fixed:
        return
    yield found(
        case,
        RULE,
        "info",
        fixed[0],
        happens="every rank draws the same dropout masks: a larger batch, but no more noise",
        remedy="torch.manual_seed(seed + rank)",
    )

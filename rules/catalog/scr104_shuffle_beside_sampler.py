"""A loader is given a sampler and told to shuffle: it refuses.

## What it finds
`DataLoader(..., sampler=..., shuffle=True)`.

## Why it matters
The sampler decides the order; DataLoader raises "sampler option is mutually exclusive with shuffle" at once.

## What to do
Leave `shuffle=True` out of the loader; `DistributedSampler(dataset, shuffle=True)` shuffles.

## Source
torch.utils.data.DataLoader
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found

RULE = ("SCR104", "shuffle-beside-sampler")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None:
        return
    for event in case.source.calls("torch.utils.data.DataLoader"):
        sampler, shuffle = event.words.get("sampler"), event.argument("shuffle", 2)
        if sampler is None or shuffle is None or shuffle.const is not True or sampler.role != "sampler" or event.alone:
            continue
        yield found(
            case,
            RULE,
            "error",
            event,
            happens="a loader with a sampler can't shuffle: it stops with 'sampler option is mutually exclusive with "
            "shuffle'",
            remedy="DataLoader(dataset, sampler=sampler, ...) without shuffle; DistributedSampler shuffles by itself",
        )

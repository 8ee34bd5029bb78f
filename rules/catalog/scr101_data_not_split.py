"""Every rank trains on the whole dataset.

## What it finds
A DataLoader over a dataset with a length that a training loop draws from, in a script that trains on several ranks,
with no sampler that knows the ranks. Silent where the dataset was cut by rank, where a library such as accelerate or
Lightning puts the sampler in, and where the loader only evaluates.

## Why it matters
DistributedDataParallel averages gradients; it does not split data. Without a DistributedSampler each rank goes through
all samples, so steps per epoch do not shrink with the world size and more GPUs give no speed-up.

## What to do
`sampler = DistributedSampler(dataset)`, pass `sampler=sampler` in place of `shuffle=True`, and call
`sampler.set_epoch(epoch)` in the epoch loop.

## Source
torch.utils.data.distributed.DistributedSampler; https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.data import training_loaders
from advisor.rules.source.report import found

RULE = ("SCR101", "data-not-split")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None or not case.source.averages_gradients:
        return
    for loader in training_loaders(case.source):
        if not loader.whole_data:
            continue
        yield found(
            case,
            RULE,
            "error",
            (loader.value.file, loader.value.line),
            happens="no sampler splits the data: each rank goes through all samples, and steps per epoch do not shrink "
            "with the world size",
            remedy="sampler = DistributedSampler(dataset); DataLoader(dataset, sampler=sampler, ...) without "
            "shuffle=True; sampler.set_epoch(epoch) in each epoch",
        )

"""Every epoch has the same order: `set_epoch` is never called.

## What it finds
A DistributedSampler that shuffles, drawn from by a training loop inside an epoch loop, whose `set_epoch` is called
nowhere.

## Why it matters
The sampler shuffles with its seed plus the epoch that it was told. Untold, each epoch has the same order and the same
batches: training is silently worse.

## What to do
Call `sampler.set_epoch(epoch)` before the loader is iterated, in each epoch.

## Source
torch.utils.data.distributed.DistributedSampler, the warning in its documentation
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.data import training_loaders
from advisor.rules.source.report import found

RULE = ("SCR102", "set-epoch-missing")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None:
        return
    for loader in training_loaders(case.source):
        sampler, epochs = loader.sampler, loader.epochs
        if sampler is None or epochs is None or not loader.shuffles or loader.told_epoch:
            continue
        yield found(
            case,
            RULE,
            "warning",
            epochs,
            happens=f"the sampler of line {sampler.line} shuffles, and set_epoch is never called: every epoch has the "
            "same order",
            remedy="in this loop, before the loader is used: sampler.set_epoch(epoch)",
            sampler=sampler.line,
            epoch_loop=epochs.line,
        )

"""Micro-batches with few tokens count as much as those with many.

## What it finds
A cross entropy with `ignore_index` and the default mean, inside an accumulation window.

## Why it matters
Each micro-batch is averaged over its own tokens that are not padding, then the averages are averaged: a token in a
short batch weighs more than one in a long batch. Loss curves with and without accumulation differ; trainers had this
wrong for years.

## What to do
Sum (`reduction="sum"`), and divide by the number of valid tokens of the whole window, over all ranks; DDP averages, so
multiply by the world size.

## Source
https://huggingface.co/blog/gradient_accumulation; https://github.com/unslothai/unsloth/issues/4725
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.steps import ignores_index, is_mean_loss, loss_of, origin, windows

RULE = ("SCR164", "mean-over-uneven-tokens")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None:
        return
    for window in windows(case.source):
        made, _ = origin(loss_of(window.backward))
        if made is None or not is_mean_loss(made) or not ignores_index(made):
            continue
        yield found(
            case,
            RULE,
            "warning",
            (made.file, made.line),
            happens="this mean is over the micro-batch's own tokens without padding: tokens of short micro-batches "
            "weigh more, and the result is not that of one large batch",
            remedy='cross_entropy(..., reduction="sum") * world_size / tokens, with tokens counted over the window and '
            "all ranks",
            step=window.step.line,
        )
        return

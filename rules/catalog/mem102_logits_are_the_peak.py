"""Logits and loss are the largest part of the memory peak.

## What it finds
A plan whose logits, log-probabilities and their gradients take more than a third of the memory per GPU.

## Why it matters
The loss holds 6 to 12 bytes per token and word of the vocabulary, more than all blocks together once activation
checkpointing is on or the vocabulary is large. It limits the micro-batch, and so the speed.

## What to do
Compute the loss in chunks or with a fused linear cross-entropy that never stores the logits, and delete logits that the
script still holds.

## Source
Measured on a 125M GPT with 50304 words: 10 bytes per logit under autocast, docs/models.md; https://arxiv.org/abs/2410.10989
"""

from collections.abc import Iterator

from advisor.rules.format import memory, percent
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

SHARE = 1 / 3


@rule("MEM102", "logits-are-the-peak")
def check(case: Case) -> Iterator[Finding]:
    if case.predicted is None:
        return
    needed = case.predicted.memory
    share = needed.logits / needed.total
    if share < SHARE:
        return
    yield Finding(
        code="MEM102",
        name="logits-are-the-peak",
        severity="info",
        message=f"logits and loss take {memory(needed.logits)} of {memory(needed.total)} per rank, {percent(share)}",
        facts={"logits": needed.logits, "total": needed.total},
        remedy="compute the loss in chunks, or with a fused linear cross-entropy",
    )

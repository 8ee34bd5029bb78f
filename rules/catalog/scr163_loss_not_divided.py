"""Accumulated gradients are a sum of means: the learning rate grows with the accumulation.

## What it finds
Accumulation by hand where each micro-batch's mean loss goes into `backward()` undivided.

## Why it matters
`backward()` adds. Over 8 micro-batches the gradient is 8 times that of one large batch: with SGD the learning rate is
8 times as large, with clipping or weight decay the balance is another one.

## What to do
`(loss / accumulation).backward()`.

## Source
https://docs.pytorch.org/docs/stable/notes/amp_examples.html, "Gradient accumulation"
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.source import Source
from advisor.rules.source.steps import is_mean_loss, loss_of, origin, windows
from advisor.rules.source.value import Loop

RULE = ("SCR163", "loss-not-divided")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    source = case.source
    if source is None:
        return
    for window in windows(source):
        made, divided = origin(loss_of(window.backward))
        if divided or not is_mean_loss(made) or _scales_gradients(source, window.loop):
            continue
        yield found(
            case,
            RULE,
            "warning",
            window.backward,
            happens=f"gradients add up over the micro-batches until line {window.step.line}: their sum is larger than "
            "that of one large batch by the number of micro-batches",
            remedy="(loss / accumulation).backward()",
            step=window.step.line,
        )
        return


def _scales_gradients(source: Source, loop: Loop) -> bool:
    """Say whether gradients are divided later: `p.grad /= n`."""
    return any(
        (event.kind == "assign" and event.name == "grad") or event.name.endswith((".grad.div_", ".grad.mul_", ".div_"))
        for event in source.events
    )

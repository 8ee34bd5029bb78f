"""Gradients are reduced over the network after each micro-batch, though only the last one needs it.

## What it finds
Accumulation by hand under DistributedDataParallel: a step each few backward passes, and no `no_sync()`.

## Why it matters
DDP reduces all gradients in each backward pass. With 8 micro-batches per step, seven of eight reductions are wasted;
on a slow link they are most of the step.

## What to do
`with model.no_sync() if not last else contextlib.nullcontext():` around the forward and the backward pass.

## Source
torch.nn.parallel.DistributedDataParallel.no_sync
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.source import Source
from advisor.rules.source.steps import windows
from advisor.rules.source.wraps import wraps

RULE = ("SCR161", "gradients-reduced-each-micro-batch")
SWITCHES = ("require_backward_grad_sync", "require_backward_sync")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    source = case.source
    if source is None or not any(True for _ in wraps(source, "ddp")) or _switches(source):
        return
    for window in windows(source):
        yield found(
            case,
            RULE,
            "info",
            window.backward,
            happens=f"DDP reduces all gradients after each micro-batch; the step is in line {window.step.line} only",
            remedy="with contextlib.nullcontext() if last else model.no_sync(): forward and backward",
            step=window.step.line,
        )
        return


def _switches(source: Source) -> bool:
    """Say whether the script turns the reduction off in some way."""
    assigned = any(event.kind == "assign" and event.name in SWITCHES for event in source.events)
    called = any(event.name.endswith((".no_sync", ".set_requires_gradient_sync")) for event in source.events)
    return assigned or called

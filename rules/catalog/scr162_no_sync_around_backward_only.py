"""`no_sync()` is around the backward pass only, and saves nothing.

## What it finds
A backward pass inside `model.no_sync()` whose forward pass is outside.

## Why it matters
DDP decides in the forward pass whether the next backward pass reduces gradients. With the forward pass outside,
gradients are reduced all the same: the accumulation is right, and as slow as without.

## What to do
Put the forward pass inside the context as well.

## Source
torch.nn.parallel.DistributedDataParallel.no_sync, its warning
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found

RULE = ("SCR162", "no-sync-around-backward-only")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    source = case.source
    if source is None:
        return
    seen: set[tuple[str, int]] = set()
    for backward in source.backwards:
        context = next((c for c in backward.contexts if c.name == "no_sync" and c.inner and c.inner.is_a("ddp")), None)
        if context is None or not backward.loops or (backward.file, backward.line) in seen:
            continue
        forwards = [event for event in source.calls("<ddp>()") if event.loops == backward.loops]
        if not forwards or any(context in event.contexts or event.inside("no_sync") for event in forwards):
            continue
        seen.add((backward.file, backward.line))
        yield found(
            case,
            RULE,
            "warning",
            backward,
            happens=f"the forward pass (line {forwards[-1].line}) is outside of no_sync(), so that gradients are "
            "reduced all the same",
            remedy="with model.no_sync(): loss = loss_fn(model(x), y); loss.backward()",
            forward=forwards[-1].line,
        )

"""Parameters are unfrozen or frozen after DistributedDataParallel was built.

## What it finds
`requires_grad` set on parameters of a model that DistributedDataParallel already holds, and that is not wrapped again
afterwards.

## Why it matters
The reducer knows the parameters that need a gradient when it is built. Those unfrozen later train on each rank's own
gradient: replicas drift apart, silently. Those frozen later are waited for: "Expected to have finished reduction".

## What to do
Wrap again after the change: `model = DistributedDataParallel(model.module, ...)`, with a new optimizer; or start with
all parameters trainable, and a learning rate of zero for those that wait.

## Source
torch.nn.parallel.DistributedDataParallel, the warning on changing parameters after the wrap
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.training import requires_grad_changes
from advisor.rules.source.wraps import wraps

RULE = ("SCR112", "requires-grad-changed-after-wrapping")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None:
        return
    made = list(wraps(case.source, "ddp"))
    seen: set[tuple[str, int]] = set()
    for change in requires_grad_changes(case.source):
        event = change.event
        of_model = [wrap for wrap in made if wrap.core in change.models]
        before = [wrap for wrap in of_model if wrap.at < event.index]
        again = any(wrap.at > event.index for wrap in of_model) or (event.file, event.line) in seen
        if not before or again or event.alone:
            continue
        whole = not change.part and not change.some  # a model that is frozen as a whole is not trained
        if not change.trains and (whole or before[-1].says("find_unused_parameters") is True):
            continue
        seen.add((event.file, event.line))
        effect = (
            "their gradients are never reduced, and ranks drift apart"
            if change.trains
            else "DDP waits for gradients that never come, and stops"
        )
        yield found(
            case,
            RULE,
            "error",
            event,
            happens=f"DDP registered the parameters in line {before[-1].event.line}: {effect}",
            remedy="wrap again after the change: model = DistributedDataParallel(model.module, ...), and a new "
            "optimizer",
            wrap=before[-1].event.line,
        )

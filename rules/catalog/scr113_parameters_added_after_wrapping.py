"""A layer is added to a model after it was wrapped.

## What it finds
A module or a parameter assigned to an attribute of a model that DistributedDataParallel or FullyShardedDataParallel
already holds, and that is not wrapped again afterwards.

## Why it matters
DDP never reduces the gradients of what it did not see: each rank trains its own head. FSDP leaves it whole and
unreduced on each rank.

## What to do
Change the model first, then wrap it.

## Source
torch.nn.parallel.DistributedDataParallel, the warning on changing parameters after the wrap
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.value import SHARDED, Event
from advisor.rules.source.wraps import roots, wraps

RULE = ("SCR113", "parameters-added-after-wrapping")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None:
        return
    made = list(wraps(case.source, "ddp", *SHARDED))
    for event in case.source.events:
        if not _adds(event):
            continue
        of_model = [wrap for wrap in made if wrap.core in roots(event.receiver)]
        before = [wrap for wrap in of_model if wrap.at < event.index]
        if not before or len(of_model) > len(before) or event.value.core is before[-1].core:
            continue
        yield found(
            case,
            RULE,
            "error",
            event,
            happens=f"the model was wrapped in line {before[-1].event.line}, which does not see this layer: its "
            "gradients are never reduced, and ranks drift apart",
            remedy="assign the layer before the model is wrapped",
            wrap=before[-1].event.line,
        )


def _adds(event: Event) -> bool:
    if event.kind != "assign" or event.receiver is None or event.receiver.role not in ("model", "layer", "ddp", "fsdp"):
        return False
    return event.value.role in ("model", "parameter") and event.value.name.startswith("torch.nn.")

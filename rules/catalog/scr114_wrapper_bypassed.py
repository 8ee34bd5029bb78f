"""The forward pass goes around the wrapper.

## What it finds
A training loop that calls the model inside (`model.module(x)`, or the name from before the wrap) and never the
DistributedDataParallel or FullyShardedDataParallel object.

## Why it matters
DDP prepares the reduction in its own forward pass. Without that, backward reduces nothing: each rank trains alone, and
no error says so.

## What to do
Call the wrapped model in the training loop; `model.module` is for evaluation on one rank, attributes and saving.

## Source
torch.nn.parallel.DistributedDataParallel, "forward and backward"; torch/csrc/distributed/c10d/reducer.cpp,
`prepare_for_backward`
"""

from collections.abc import Iterator, Sequence

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.source import Source
from advisor.rules.source.value import Event
from advisor.rules.source.wraps import Wrap, wraps

RULE = ("SCR114", "wrapper-bypassed")
WITHOUT_GRADIENTS = ("no_grad", "inference_mode")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None:
        return
    seen: set[tuple[str, int]] = set()
    passes = [event for event in case.source.events if event.kind == "call" and event.name.endswith("()")]
    for wrap in wraps(case.source, "ddp", "fsdp"):
        for event in _bypasses(case.source, wrap, passes):
            if (event.file, event.line) in seen:
                continue
            seen.add((event.file, event.line))
            yield found(
                case,
                RULE,
                "error",
                event,
                happens=f"this calls the model inside, not the wrapper of line {wrap.event.line}: backward reduces no "
                "gradients, and each rank trains alone",
                remedy="call the wrapped model in the training loop",
                wrap=wrap.event.line,
            )


def _bypasses(source: Source, wrap: Wrap, passes: Sequence[Event]) -> Iterator[Event]:
    """Yield forward passes of the model itself in loops that train it and never call its wrapper."""
    if any(backward.receiver is not None and backward.receiver.role == "engine" for backward in source.backwards):
        return
    for event in passes:
        if event.index < wrap.at or event.receiver is not wrap.core or not event.loops:
            continue
        loop = event.loops[-1]
        trained = any(loop in backward.loops for backward in source.backwards)
        wrapped = any(
            other.receiver is not None and other.receiver is not wrap.core and other.receiver.core is wrap.core
            for other in passes
            if loop in other.loops
        )
        if trained and not wrapped and not any(event.inside(name) for name in WITHOUT_GRADIENTS) and not event.by_rank:
            yield event

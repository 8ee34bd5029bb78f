"""One rank alone runs the forward pass of a DistributedDataParallel model.

## What it finds
The wrapper called under a condition on the rank, as in `if rank == 0: evaluate(model)`. An error where the model has
batch normalisation, a warning where its layers are not known, nothing where it is known to have no buffers.

## Why it matters
Before each forward pass DDP broadcasts the buffers (running means, for example) from rank 0. The other ranks don't
come: rank 0 hangs, or its broadcast meets their next one.

## What to do
Evaluate the model inside: `evaluate(model.module)`; or let all ranks evaluate a share each.

## Source
torch.nn.parallel.DistributedDataParallel, `forward_sync_buffers`; https://github.com/pytorch/pytorch/issues/54059
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.layers import has_buffers
from advisor.rules.source.report import found

RULE = ("SCR144", "one-rank-runs-the-wrapper")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    source = case.source
    if source is None:
        return
    seen: set[tuple[str, int]] = set()
    for event in source.calls("<ddp>()"):
        guard, wrapper = event.by_rank, event.receiver
        if guard is None or wrapper is None or guard.split not in ("first", "others", "some"):
            continue
        off = [wrapper.words.get(word) for word in ("broadcast_buffers", "forward_sync_buffers")]
        buffers = has_buffers(source, wrapper.core)
        if buffers is False or any(word is not None and word.const is False for word in off):
            continue
        if (event.file, event.line) in seen:
            continue
        seen.add((event.file, event.line))
        yield found(
            case,
            RULE,
            "error" if buffers else "warning",
            event,
            happens=f"only some ranks come here (line {guard.line}), and DDP broadcasts "
            + ("the buffers" if buffers else "buffers, if the model has any,")
            + " before each forward pass: a hang",
            remedy="call the model inside: model.module(x); or evaluate on all ranks",
            condition=guard.line,
        )

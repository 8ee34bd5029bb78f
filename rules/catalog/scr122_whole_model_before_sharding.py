"""The whole model is put on each GPU before FSDP cuts it.

## What it finds
`model.to(device)` or `model.cuda()` on a model that is given to FullyShardedDataParallel or `fully_shard` afterwards.

## Why it matters
Each rank holds all parameters on its GPU at that point: 4 bytes per parameter in fp32, 28 GB for 7B, however many
ranks there are. A model that fits once sharded goes out of memory while it is wrapped.

## What to do
Build it on the CPU, or on the meta device, and let FSDP move one unit after the other:
`FSDP(model, device_id=local_rank)`.

## Source
torch.distributed.fsdp.FullyShardedDataParallel, `device_id`;
https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.value import Event
from advisor.rules.source.wraps import moved_to_gpu, wraps

RULE = ("SCR122", "whole-model-before-sharding")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None:
        return
    reported: list[Event] = []
    moves = [event for event in case.source.events if moved_to_gpu(event)]
    for wrap in wraps(case.source, "fsdp", "fsdp2"):
        for event in moves:
            before = event.index < wrap.at and event not in reported
            if not before or event.receiver is None or event.receiver.core is not wrap.core:
                continue
            reported.append(event)
            yield found(
                case,
                RULE,
                "warning",
                event,
                happens=f"each GPU holds the whole model until FSDP cuts it in line {wrap.event.line}: the peak is all "
                "parameters, 4 bytes each in fp32",
                remedy="leave the model on the CPU or the meta device, and let FSDP move it: FSDP(model, ..., "
                "device_id=local_rank)",
                wrap=wrap.event.line,
            )

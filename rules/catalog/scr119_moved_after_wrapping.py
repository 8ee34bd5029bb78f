"""The model is moved to its GPU after DistributedDataParallel has wrapped it.

## What it finds
`.to(device)` or `.cuda()` on a DistributedDataParallel object whose model was on the CPU when it was wrapped.

## Why it matters
DDP broadcasts the weights and builds its buckets when it is made, from parameters on the CPU: NCCL refuses them, or
the buckets stay on the wrong device.

## What to do
`model.to(device)` first, then `DistributedDataParallel(model, device_ids=[local_rank])`.

## Source
torch.nn.parallel.DistributedDataParallel: "module must be on its device"
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.wraps import made_here, moved_to_gpu, on_gpu, wraps

RULE = ("SCR119", "moved-after-wrapping")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    source = case.source
    if source is None:
        return
    moves = [event for event in source.events if moved_to_gpu(event)]
    for wrap in wraps(source, "ddp"):
        before = any(e.receiver and e.receiver.core is wrap.core for e in moves if e.index < wrap.at)
        for event in source.calls("<ddp>.to", "<ddp>.cuda"):
            method = event.index > wrap.at and event.receiver is wrap.event.value
            device = event.argument("device", 0)
            if before or not method or event.alone or not made_here(wrap.core):
                continue
            if event.name == "<ddp>.to" and (device is None or not on_gpu(device)):
                continue
            yield found(
                case,
                RULE,
                "error",
                event,
                happens=f"the model was on the CPU when it was wrapped in line {wrap.event.line}, and NCCL refuses it",
                remedy="model.to(device) first, then DistributedDataParallel(model, device_ids=[local_rank])",
                wrap=wrap.event.line,
            )
            break

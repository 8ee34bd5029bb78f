"""A plain GradScaler looks for overflow in each rank's own shard.

## What it finds
`torch.amp.GradScaler` stepping an optimizer over the parameters of a FullyShardedDataParallel model.

## Why it matters
A rank that finds an infinite gradient in its shard skips the step and lowers its scale; the others take it. Shards
drift apart, and the model is wrong.

## What to do
`from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler`, which shares what it finds; or bf16, which
needs no scaler.

## Source
torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.wraps import outer_owners

RULE = ("SCR124", "plain-scaler-with-fsdp")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None:
        return
    for event in case.source.calls("<scaler>.step"):
        optimizer = event.args[0] if event.args else None
        params = optimizer.argument("params", 0) if optimizer is not None else None
        enabled = event.receiver.argument("enabled") if event.receiver else None
        if (enabled is not None and enabled.const is False) or not any(v.is_a("fsdp") for v in outer_owners(params)):
            continue
        yield found(
            case,
            RULE,
            "error",
            event,
            happens="each rank looks for overflow in its own shard: some skip the step, others take it, and the "
            "shards drift apart",
            remedy="scaler = ShardedGradScaler()  # from torch.distributed.fsdp.sharded_grad_scaler",
        )

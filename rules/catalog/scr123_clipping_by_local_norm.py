"""Gradients of an FSDP model are clipped by the norm of each rank's own shard.

## What it finds
`torch.nn.utils.clip_grad_norm_` on the parameters of a FullyShardedDataParallel model. Silent for `fully_shard`, whose
gradients are DTensors that the same function sums over ranks, and for `NO_SHARD`.

## Why it matters
Each rank sees its shard's norm only and scales by its own factor: the direction of the step is wrong, and differs from
what one GPU would do.

## What to do
`model.clip_grad_norm_(max_norm)`, on every rank.

## Source
torch.distributed.fsdp.FullyShardedDataParallel.clip_grad_norm_; https://github.com/meta-pytorch/torchtune/pull/2169
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.wraps import outer_owners

RULE = ("SCR123", "clipping-by-local-norm")
CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None:
        return
    for event in case.source.calls(*CLIPS):
        owner = next((value for value in outer_owners(event.argument("parameters", 0)) if value.is_a("fsdp")), None)
        if owner is None or event.alone:
            continue
        wrapper = next(layer for option in (owner, *owner.options) for layer in option.layers() if layer.role == "fsdp")
        strategy = wrapper.argument("sharding_strategy")
        if strategy is not None and strategy.name.endswith("NO_SHARD"):
            continue
        yield found(
            case,
            RULE,
            "error",
            event,
            happens="each rank clips by the norm of its own shard, and ranks scale differently: wrong gradients",
            remedy="model.clip_grad_norm_(max_norm), the method of the FSDP model, on every rank",
        )

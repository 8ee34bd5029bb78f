"""Gradients are averaged by hand over replicas that start from different weights.

## What it finds
`all_reduce` of gradients by hand, weights that are initialised at random on each rank, and no broadcast of them.

## Why it matters
DistributedDataParallel broadcasts rank 0's weights; a loop over `p.grad` does not. Each rank then adds the same steps
to other weights: replicas never agree, and the average gradient is that of no model.

## What to do
Before training, on all ranks: `for p in model.parameters(): dist.broadcast(p.data, src=0)`; or
DistributedDataParallel.

## Source
https://docs.pytorch.org/tutorials/intermediate/dist_tuto.html; torch.nn.parallel.DistributedDataParallel
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.saves import BY_RANK

RULE = ("SCR108", "replicas-start-different")
SHARES = ("broadcast", "load_state_dict", "from_pretrained", "_broadcast_coalesced", "broadcast_object_list")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    source = case.source
    if source is None or not source.reduced_by_hand or source.wraps or not source.backwards:
        return
    seeds = [event for event in source.calls("torch.manual_seed") if event.args]
    equal = seeds and not any(event.args[0].taint & BY_RANK for event in seeds)
    shared = any(event.name.rpartition(".")[2] in SHARES for event in source.events)
    if equal or shared:
        return
    yield found(
        case,
        RULE,
        "error",
        source.reduced_by_hand[0],
        happens="gradients are averaged over replicas that start from different random weights: they never agree",
        remedy="before training: for p in model.parameters(): dist.broadcast(p.data, src=0)",
    )

"""Only rank 0 has the weights, and FSDP shards each rank's own: the model is noise.

## What it finds
Weights that are loaded under a condition on the rank, then FullyShardedDataParallel without `sync_module_states=True`,
or `fully_shard` without a broadcast of the state.

## Why it matters
DistributedDataParallel broadcasts rank 0's weights when it is built; FSDP does not unless told. Each rank keeps its
shard of what it has itself: one part of the model is pretrained, the others are random.

## What to do
`FSDP(model, sync_module_states=True, device_id=local_rank)`. With `fully_shard`, load on rank 0 and call
`set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))`.

## Source
torch.distributed.fsdp.FullyShardedDataParallel, `sync_module_states`; torch.distributed.checkpoint.state_dict
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.source import Source
from advisor.rules.source.value import Event
from advisor.rules.source.wraps import Wrap, roots, wraps

RULE = ("SCR121", "shards-of-different-weights")
BROADCASTS = ("torch.distributed.broadcast", "torch.distributed._broadcast_coalesced")
SETTERS = (
    "torch.distributed.checkpoint.state_dict.set_model_state_dict",
    "torch.distributed.checkpoint.state_dict.set_state_dict",
)


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None:
        return
    for wrap in wraps(case.source, "fsdp", "fsdp2"):
        loaded = next((event for event in case.source.events if _loads(event, wrap)), None)
        if loaded is None or _synchronised(case.source, wrap):
            continue
        yield found(
            case,
            RULE,
            "error",
            wrap.event,
            happens=f"only some ranks have the weights loaded in line {loaded.line}, and FSDP broadcasts nothing by "
            "itself: the other shards stay random",
            remedy="FSDP(model, ..., sync_module_states=True)"
            if wrap.role == "fsdp"
            else "set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True, "
            "broadcast_from_rank0=True))",
            loaded=loaded.line,
        )


def _loads(event: Event, wrap: Wrap) -> bool:
    by_rank = event.by_rank
    if event.kind != "call" or event.index >= wrap.at or by_rank is None or by_rank.split == "unsure":
        return False
    if event.name.endswith(".from_pretrained"):
        return bool(wrap.core.options) and event.value in (wrap.core, *wrap.core.options)
    return event.name.endswith(".load_state_dict") and wrap.core in roots(event.receiver)


def _synchronised(source: Source, wrap: Wrap) -> bool:
    given = wrap.event.words.get("sync_module_states")
    if given is not None and given.const is not False:
        return True
    return any(True for _ in source.calls(*BROADCASTS)) or any(True for _ in source.calls(*SETTERS))

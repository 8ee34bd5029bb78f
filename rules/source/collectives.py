"""Calls that every rank must make: where a script makes them, and which ranks come there."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.rules.source.known_names import (
    CHECKPOINT_COLLECTIVES,
    COLLECTIVE_METHODS,
    COLLECTIVES,
    FSDP2,
    STATE_DICT_GETTERS,
)
from advisor.rules.source.value import SHARDED, Event, Loop, Value

if TYPE_CHECKING:
    from advisor.rules.source.source import Source

WITHOUT_GROUP = ("torch.distributed.init_process_group", "torch.distributed.init_device_mesh")


def is_collective(source: "Source", event: Event) -> bool:
    name, receiver = event.name, event.receiver
    if name in COLLECTIVES:
        if name == WITHOUT_GROUP[0] and "world_size" in event.words:
            return False  # of some processes, on purpose
        group = event.words.get("group") or event.words.get("process_group")
        return name in WITHOUT_GROUP or group is None or group.const is None
    if name in CHECKPOINT_COLLECTIVES:
        return True
    if name in STATE_DICT_GETTERS:
        return bool(event.args) and event.args[0].is_a(*SHARDED)
    if receiver is None:
        return False
    method = name.rpartition(".")[2]
    if method == "full_tensor":
        return any(True for _ in source.calls(FSDP2))
    if (receiver.role, method) in COLLECTIVE_METHODS:
        return not _has_own_group(receiver)
    if name.startswith("own."):
        return False
    if method == "state_dict" or name.endswith("()"):
        return receiver.is_a("fsdp") or (receiver.is_a("fsdp2") and method != "state_dict")
    return name.endswith(".backward") and source.wrapped_backward(event)


def _has_own_group(fabric: Value) -> bool:
    """Say whether it was made for some of the ranks: Fabric(strategy=DDPStrategy(process_group=group))."""
    strategy = fabric.words.get("strategy")
    group = strategy.words.get("process_group") if strategy is not None else None
    return group is not None and group.const is not None


def meets_in(source: "Source", loop: Loop) -> Iterator[Event]:
    """Yield the calls in a loop at which ranks wait for each other."""
    return (event for event in source.collectives if loop in event.loops)


def answered(source: "Source", event: Event) -> bool:
    """Say whether the other ranks make the same call in another branch: `if rank == 0: f(x) else: f(y)`."""
    guard = event.by_rank
    return guard is not None and any(
        other is not event
        and other.name == event.name
        and other.by_rank is not None
        and other.by_rank.split != guard.split
        for other in source.collectives
    )


def gathers_once_sharded(source: "Source") -> list[Event]:
    """Return what all ranks must do once a plan shards the model: states of it and its optimizers, forward passes."""
    wraps = [event.value for event in source.events if event.kind == "call" and event.value.role == "ddp"]
    held = {id(value.core) for value in wraps}
    return [event for event in source.events if event.kind == "call" and _gathers(event, held)]


def _gathers(event: Event, held: set[int]) -> bool:
    receiver = event.receiver
    if receiver is None or event.name.startswith("own."):
        return False
    of_model = receiver.is_a("ddp") or any(id(option.core) in held for option in (receiver, *receiver.options))
    if event.name.endswith(".state_dict"):
        return of_model or receiver.role == "optimizer"
    return event.name.endswith("()") and receiver.is_a("ddp")

"""What a checkpoint holds of the objects of a training script, under names that no wrapper changes."""

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only

from advisor.checkpoint.folder import CheckpointError

State = dict[str, Any]


def is_sharded(model: nn.Module) -> bool:
    """Say whether a rank holds less than the whole model."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters()) or any(
        isinstance(module, FullyShardedDataParallel) for module in model.modules()
    )


def collect(model: nn.Module, optimizers: Sequence[Optimizer], *, full: bool = False) -> State:
    """Return the state of model and optimizers: this rank's shards, or the whole on rank 0 alone. A collective.

    An optimizer that has not stepped is given states as after one step: torch makes them by a step without gradients.
    """
    options = StateDictOptions(full_state_dict=full, cpu_offload=full)
    state: State = {"model": get_model_state_dict(model, options=options)}
    if optimizers:
        with _no_step_hooks():
            state["optimizer"] = get_optimizer_state_dict(model, optimizers, options=options)
    return state


def collect_unchanged(model: nn.Module, optimizers: Sequence[Optimizer], *, full: bool) -> tuple[State, bool]:
    """Return the state, and whether the optimizers have stepped; those that have not are left without states."""
    fresh = [optimizer for optimizer in optimizers if not optimizer.state]
    state = collect(model, optimizers, full=full)
    for optimizer in fresh:
        optimizer.state.clear()
    stepped = len(fresh) < len(optimizers)
    if not stepped and state.get("optimizer"):
        state["optimizer"]["state"] = {}
    return state, stepped


def put_back(model: nn.Module, optimizers: Sequence[Optimizer], state: State, *, full: bool) -> None:
    """Give model and optimizers the state that was saved; `full`: each rank has all of it, else its own shards."""
    sharded = full and is_sharded(model)
    set_model_state_dict(model, state["model"], options=StateDictOptions(full_state_dict=sharded))
    if not optimizers:
        return
    saved: Any = state["optimizer"]
    tensors = any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(saved["state"]))
    with _no_step_hooks():
        set_optimizer_state_dict(
            model, optimizers, saved, options=StateDictOptions(full_state_dict=sharded and tensors)
        )
    for optimizer in optimizers:
        if not saved["state"]:
            optimizer.state.clear()
        for values in optimizer.state.values():
            # Torch keeps a CPU tensor as it is given, and here that is a piece of the mapped file.
            values.update({name: _own(value) for name, value in values.items()})


def _own(value: Any) -> Any:
    plain = isinstance(value, torch.Tensor) and not isinstance(value, DTensor) and value.device.type == "cpu"
    return value.clone() if plain else value


@contextlib.contextmanager
def _no_step_hooks() -> Iterator[None]:
    """Keep hooks on all optimizers out: the step by which torch makes missing states is none of the training."""
    names = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
    hooks = [getattr(sys.modules[Optimizer.__module__], name, {}) for name in names]
    kept = [dict(some) for some in hooks]
    for some in hooks:
        some.clear()
    try:
        yield
    finally:
        for some, before in zip(hooks, kept, strict=True):
            some.update(before)


def shapes(state: Mapping[str, Any]) -> dict[str, list[int] | None]:
    """Return the shapes of a model's tensors, of whole ones also where this rank holds a shard."""
    return {name: list(value.shape) if isinstance(value, torch.Tensor) else None for name, value in state.items()}


def check_fit(saved: dict[str, list[int] | None], here: dict[str, list[int] | None], path: object) -> None:
    """Raise CheckpointError where a checkpoint is of another model."""
    told = [f"{_some(saved.keys() - here.keys())} only in the checkpoint"] if saved.keys() - here.keys() else []
    if here.keys() - saved.keys():
        told.append(f"{_some(here.keys() - saved.keys())} only in the model")
    differing = [name for name in saved.keys() & here.keys() if saved[name] != here[name]]
    told += [
        f"{name} is {saved[name]} in the checkpoint and {here[name]} in the model" for name in sorted(differing)[:3]
    ]
    if told:
        raise CheckpointError(
            f"{path} is not of this model: {'; '.join(told)}: build the model as it was saved, or give another folder"
        )


def _some(names: set[str]) -> str:
    first, *others = sorted(names)
    return first if not others else f"{first} and {len(others)} more"


def own_bytes(state: State, rank: int) -> int:
    """Estimate what this rank will write: its shards; of what all hold alike, rank 0 alone counts."""
    return sum(_own_bytes(leaf, rank) for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor))


def _own_bytes(tensor: torch.Tensor, rank: int) -> int:
    if not isinstance(tensor, DTensor):
        return tensor.nbytes if rank == 0 else 0
    coordinates: Sequence[int] = tensor.device_mesh.get_coordinate() or []
    copy = any(place.is_replicate() and at for place, at in zip(tensor.placements, coordinates, strict=False))
    return 0 if copy else tensor.to_local().nbytes


def detach(state: State, model: nn.Module, optimizers: Sequence[Optimizer]) -> State:
    """Copy the CPU tensors of a state that training goes on to change."""
    live = [*model.parameters(), *model.buffers()]
    live += [leaf for one in optimizers for leaf in tree_leaves(dict(one.state)) if isinstance(leaf, torch.Tensor)]
    places = {_place(tensor) for tensor in live}
    return tree_map_only(torch.Tensor, lambda t: t.clone() if _place(t) in places else t, state)  # type: ignore[no-any-return]


def _place(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage().data_ptr()


def packed(values: Mapping[str, Any], what: str) -> bytes:
    """Serialise small values, and make sure that a safe load accepts them: not at the load, when it is too late."""
    buffer = io.BytesIO()
    torch.save(dict(values), buffer)
    buffer.seek(0)
    unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(buffer)
    if unsafe:
        raise CheckpointError(
            f"{what} holds {', '.join(sorted(unsafe))}, which a safe load would refuse: give numbers, texts, tensors, "
            "lists and dicts of them, such as vars(args), or an object with state_dict()"
        )
    return buffer.getvalue()


def states_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace each object that has a state_dict by it."""
    return {name: value.state_dict() if hasattr(value, "state_dict") else value for name, value in values.items()}


def give_states(saved: Mapping[str, Any], values: dict[str, Any]) -> None:
    """Give each object that has a state its own back, and replace the other values by the saved ones."""
    for name, value in saved.items():
        if hasattr(values.get(name), "load_state_dict"):
            values[name].load_state_dict(value)
        else:
            values[name] = value

"""What FSDP2 keeps of a sharded module, under the names that versions of PyTorch give it (2.11 and later)."""

import functools
import weakref
from collections.abc import Iterator
from typing import Any

from advisor.executor.in_process import whole

_groups_by_weight: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def groups_of(module: Any) -> list[Any]:
    """Return the groups of parameters that a module gathers together; a module that is not sharded has none."""
    state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
    return [] if state is None else _groups(state)


def all_groups(root: Any) -> Iterator[Any]:
    """Yield the groups of a sharded model and of all its parts, once it was called or initialised."""
    for state in root._get_fsdp_state()._state_ctx.all_states:
        yield from _groups(state)


def reduce_unused(root: Any) -> None:
    """Have weights that a rank's pass does not reach take part in the reduction, with zeros: others may reach them."""
    from torch.distributed.fsdp import FSDPModule

    if hasattr(root, "set_reduce_scatter_unused_params"):
        root.set_reduce_scatter_unused_params(True)
        return
    for part in root.modules():
        for group in groups_of(part) if isinstance(part, FSDPModule) else ():
            group.post_backward = _filling(group, group.post_backward)


def let_data_be_set(root: Any) -> None:
    """Have `weight.data = other` of a sharded model take effect: FSDP gathers from memory that it knows by itself."""
    from torch.distributed.tensor import DTensor

    for part in root.modules():
        for group in groups_of(part):
            _groups_by_weight.update({id(one.sharded_param): group for one in group.fsdp_params})
    if "data" not in vars(DTensor):
        native: Any = DTensor.data
        DTensor.data = property(native.__get__, functools.partial(_set_data, native))  # type: ignore[assignment]


def _set_data(native: Any, tensor: Any, value: Any) -> None:
    group = _groups_by_weight.get(id(tensor))
    mine = [one for one in group.fsdp_params if one.sharded_param is tensor] if group is not None else []
    data = whole.sharded_like(value, tensor) if mine else value
    if not mine or not whole.is_sharded(data) or data.placements != tensor.placements:
        native.__set__(tensor, value)
        return
    if group is not None and group.is_unsharded:
        group.reshard()
    tensor._local_tensor = data._local_tensor.detach()
    for one in mine:
        one.reset_sharded_param()


def _groups(state: Any) -> list[Any]:
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def _filling(group: Any, post_backward: Any) -> Any:
    """Give what has no gradient zeros for one, before a group reduces what it has."""
    import torch

    @functools.wraps(post_backward)
    def filled(*unused: Any) -> None:
        for part in group.fsdp_params if group.reduce_grads else ():
            weight = getattr(part, "_unsharded_param", None)
            if weight is not None and weight.requires_grad and part.unsharded_accumulated_grad is None:
                weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        post_backward(*unused)

    return filled

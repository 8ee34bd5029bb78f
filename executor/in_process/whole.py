"""State of sharded models and optimizers as a script knows it from DDP: whole tensors out and in, deep copies.

Calls from torch.distributed.checkpoint are left alone: it stores shards.
"""

import copy
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

ADVICE = "call it on every rank and let rank 0 alone write the file"
# What a script may do with a whole tensor (a copy of the model, say) and a sharded one: element by element, as
# averages of weights do it.
ELEMENTWISE = (
    *("add.Tensor", "add_.Tensor", "sub.Tensor", "sub_.Tensor", "mul.Tensor", "mul_.Tensor", "copy_.default"),
    *("lerp.Scalar", "lerp_.Scalar", "lerp.Tensor", "lerp_.Tensor", "_foreach_lerp_.Scalar", "_foreach_copy_.default"),
    *("_foreach_add_.List", "_foreach_sub_.List", "_foreach_lerp_.ScalarList"),
)
MAKES = ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")

Meet = Callable[[str, str], None]


def is_sharded(value: Any) -> bool:
    tensor = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and isinstance(value, tensor.DTensor)


def gathered(value: Any) -> Any:
    """Return the whole of a sharded tensor, on every rank; a collective. In host memory where the GPU is too full."""
    import torch

    value = value.detach()  # inside of an operation torch 2.11 can't gather what has gradients
    if value.device.type == "cpu" and value.device_mesh.device_type == "cuda" and not gathers_on_cpu():
        return value.to("cuda").full_tensor().cpu()  # a model that was moved to host memory, as for a checkpoint
    full = value.full_tensor()
    if full.device.type == "cuda":
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        if free < torch.cuda.get_device_properties(full.device).total_memory // 4:
            return full.cpu()
    return full


def value(tensor: Any) -> Any:
    """Return a copy of a tensor's value, whole."""
    tensor = tensor.detach()
    return gathered(tensor) if is_sharded(tensor) else tensor.clone()


def gathers_on_cpu() -> bool:
    import torch.distributed as dist

    return "cpu" in str(dist.get_backend_config())


def sharded_like(value: Any, parameter: Any) -> Any:
    """Return this rank's part of a whole tensor in a parameter's shape; anything else as it is. No communication."""
    import torch
    from torch.distributed.tensor import distribute_tensor

    if not is_sharded(parameter) or is_sharded(value) or not isinstance(value, torch.Tensor):
        return value
    if value.shape != parameter.shape:
        return value
    return distribute_tensor(value.detach(), parameter.device_mesh, parameter.placements, src_data_rank=None)


def shard_state(state: dict[str, Any], parameter: Any) -> dict[str, Any]:
    """Bring one parameter's optimizer state into the parameter's shards."""
    import torch

    sharded = {name: sharded_like(value, parameter) for name, value in state.items()}
    home = parameter.to_local().device if is_sharded(parameter) else None
    return {
        name: value.to(home) if home == torch.device("cpu") and is_sharded(value) else value
        for name, value in sharded.items()
    }


def checkpointing() -> bool:
    """Say whether torch.distributed.checkpoint is what called us."""
    frame = inspect.currentframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("torch.distributed.checkpoint"):
            return True
        frame = frame.f_back
    return False


class ModelState:
    """Hooks by which `state_dict` and `load_state_dict` of a sharded model or a part of it deal in whole tensors."""

    def __init__(self, meet: Meet) -> None:
        self._meet = meet
        self._leave = False
        self._done: dict[int, Any] = {}  # of this call, by parameter: tied ones stay tied

    def install(self, model: Any) -> None:
        for module in model.modules():
            # Partials, since torch marks these hooks and methods take no marks.
            module.register_state_dict_pre_hook(functools.partial(self.before))
            module.register_state_dict_post_hook(functools.partial(self.gather))
            module.register_load_state_dict_pre_hook(functools.partial(self.shard))

    def before(self, module: Any, prefix: str, keep_vars: bool) -> None:
        if prefix == "":
            self._done.clear()
            self._leave = checkpointing()
            if not self._leave:
                self._meet("state_dict()", ADVICE)

    def gather(self, module: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        if self._leave:
            return
        for name, own in [*module._parameters.items(), *module._buffers.items()]:
            value = state.get(prefix + name)
            if is_sharded(value):
                if id(own) not in self._done:
                    self._done[id(own)] = gathered(value)
                state[prefix + name] = self._done[id(own)]
        if prefix == "":
            self._done.clear()

    def shard(self, module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name, own in module._parameters.items():
            if prefix + name in state:
                state[prefix + name] = sharded_like(state[prefix + name], own)


def copy_whole(module: Any, memo: dict[int, Any]) -> Any:
    """Deep-copy a sharded module as a whole and plain one, as a copy of the model under DDP would be. A collective."""
    from torch import nn

    for parameter in module.parameters():
        if is_sharded(parameter) and id(parameter) not in memo:
            memo[id(parameter)] = nn.Parameter(gathered(parameter.detach()).clone(), parameter.requires_grad)
    kind: Any = type(module)
    plain = object.__new__(kind.__mro__[kind._orig_cls_mro_index])
    memo[id(module)] = plain
    vars(plain).update(copy.deepcopy(without_sharding(vars(module)), memo))
    for part in plain.modules():
        vars(part).update(without_sharding(vars(part)))
    return plain


def without_sharding(state: dict[str, Any]) -> dict[str, Any]:
    """Return a module's state without what sharding and recomputation added: their own state, and hooks."""
    from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY

    state = {name: value for name, value in state.items() if name not in (STATE_KEY, REGISTRY_KEY)}
    for name, value in state.items():
        if name.endswith("_hooks") and isinstance(value, dict):
            state[name] = type(value)((key, hook) for key, hook in value.items() if not _of_sharding(hook))
        elif name.endswith(("_hooks_with_kwargs", "_hooks_always_called")):
            hooks = state[name.removesuffix("_with_kwargs").removesuffix("_always_called")]
            state[name] = type(value)((key, flag) for key, flag in value.items() if key in hooks)
    return state


def _of_sharding(hook: Any) -> bool:
    hook = getattr(hook, "hook", hook)  # torch wraps hooks of load_state_dict
    hook = getattr(hook, "func", hook)
    owner = type(getattr(hook, "__self__", None)).__module__
    names = (owner, getattr(inspect.unwrap(hook), "__module__", None) or "")
    return any(name.startswith(("torch.distributed", "advisor.executor.in_process")) for name in names)


def steer_optimizers(meet: Meet, optimizer: Any) -> None:
    """Have optimizers over sharded parameters give and take whole states."""
    kind = optimizer.Optimizer
    give, take = kind.state_dict, kind.load_state_dict

    @functools.wraps(give)
    def state_dict(self: Any) -> Any:
        if not any(map(is_sharded, _parameters(self))) or checkpointing():
            return give(self)
        meet("an optimizer's state_dict()", ADVICE)
        packed = give(self)
        states = sorted(packed["state"].items(), key=lambda item: str(item[0]))
        whole = {
            key: {name: gathered(value) if is_sharded(value) else value for name, value in state.items()}
            for key, state in states
        }
        return packed | {"state": {key: whole[key] for key in packed["state"]}}

    @functools.wraps(take)
    def load_state_dict(self: Any, state_dict: Any) -> Any:
        if not any(map(is_sharded, _parameters(self))) or checkpointing():
            return take(self, state_dict)
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameter = dict(zip(numbers, _parameters(self), strict=False))
        state = {
            key: shard_state(value, parameter[key]) if key in parameter and isinstance(value, dict) else value
            for key, value in state_dict["state"].items()
        }
        return take(self, {**state_dict, "state": state})

    kind.state_dict, kind.load_state_dict = state_dict, load_state_dict


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def steer_save(meet: Meet, serialization: Any) -> None:
    """Have `torch.save` write whole tensors where the script saves sharded ones, such as averages of its own."""
    save = serialization.save

    @functools.wraps(save)
    def save_whole(obj: Any, *args: Any, **kwargs: Any) -> Any:
        if _holds_sharded(obj) and not checkpointing():
            meet("torch.save() of sharded tensors", "gather them on every rank, with tensor.full_tensor()")
            obj = _whole(obj)
        return save(obj, *args, **kwargs)

    serialization.save = sys.modules["torch"].save = save_whole  # type: ignore[attr-defined]


def _holds_sharded(obj: Any) -> bool:
    if type(obj) in (list, tuple):
        return any(map(_holds_sharded, obj))
    return any(map(_holds_sharded, obj.values())) if isinstance(obj, dict) else is_sharded(obj)


def _whole(obj: Any) -> Any:
    if type(obj) in (list, tuple):
        return type(obj)(map(_whole, obj))
    if isinstance(obj, dict):
        same = copy.copy(obj)
        same.update((key, _whole(value)) for key, value in obj.items())
        return same
    return gathered(obj) if is_sharded(obj) else obj


def let_copies_follow() -> None:
    """Let whole copies of the model meet its sharded parameters in element-wise arithmetic.

    Only without gradients and only there: elsewhere torch rightly refuses, since it would take what differs between
    ranks, such as activations, for equal.
    """
    import torch
    from torch.distributed.tensor import DTensor

    dispatcher: Any = DTensor._op_dispatcher
    handlers = dispatcher._custom_op_handlers

    def mixed(args: Any) -> bool:
        tensors = [item for arg in args for item in (arg if isinstance(arg, list | tuple) else [arg])]
        tensors = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.ndim]
        learning = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        return not learning and any(map(is_sharded, tensors)) and not all(map(is_sharded, tensors))

    def alike(op: Any, args: Any) -> tuple[Any, ...]:
        """Make all tensors whole, or sharded where the first is and is written to."""
        if op._schema.is_mutable and is_sharded(args[0]):
            return tuple(sharded_like(arg, args[0]) for arg in args)
        if op._schema.is_mutable and isinstance(args[0], list | tuple) and any(map(is_sharded, args[0])):
            return tuple(args)  # a list of both kinds: torch refuses it
        return tuple(_whole(arg) for arg in args)

    def handle(op: Any, args: Any, kwargs: Any) -> Any:
        del handlers[op]  # so that the call below goes torch's own way
        try:
            return op(*(alike(op, args) if mixed(args) else args), **kwargs)
        finally:
            handlers[op] = handle

    for name in ELEMENTWISE:
        packet, overload = name.split(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if op is not None:
            handlers.setdefault(op, handle)


def let_weights_make_tensors() -> None:
    """Have a weight make ordinary tensors: states, as in next(self.parameters()).new_zeros(layers, batch, hidden).

    Of its own shape they are in shards like it, as optimizers need them.
    """
    from torch.distributed.tensor import DTensor

    for name in MAKES:
        setattr(DTensor, name, _making(getattr(DTensor, name)))


def _making(make: Any) -> Any:
    @functools.wraps(make)
    def made(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        is_weight = isinstance(tensor, torch.nn.Parameter)
        if not is_weight:
            return make(tensor, *args, **kwargs)
        found = getattr(tensor.detach().to_local(), make.__name__)(*args, **kwargs)
        return make(tensor, *args, **kwargs) if found.shape == tensor.shape else found

    return made

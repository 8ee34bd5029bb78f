"""The ways into a sharded model of a plain script beside its call: methods of its own, and calls of its parts.

FSDP gathers weights when the module they belong to is called. `model.encode(x)`, `model.forward(x)` and
`agent.actor(x)` are calls as well: the weights are gathered before, and the gradients collected. A method that gets no
tensor is left alone, since it may change weights; what it calls goes its own way.
"""

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any


def open_doors(root: Any, compiled: bool) -> None:
    """Let a sharded model be entered by its methods and by its parts; hooks on parts would cut a compiled one up."""
    from torch import nn
    from torch.distributed.fsdp import FSDPModule

    root.register_forward_hook(forget)
    for part in root.modules():
        if isinstance(part, FSDPModule) and "entered_by_methods" not in vars(type(part)):
            kind: Any = type(part)
            kind.entered_by_methods = True
            for name, method in _methods(kind, nn.Module, FSDPModule):
                setattr(kind, name, _entering(method))
    for part in () if compiled else _callable_parts(root):
        door = Door(root, part)
        part.register_forward_pre_hook(door.before, prepend=True, with_kwargs=True)
        part.register_forward_hook(door.after)


class Door:
    """The hooks of one part of a model that a script may call by itself."""

    def __init__(self, root: Any, part: Any) -> None:
        self._root, self._part = weakref.ref(root), weakref.ref(part)
        self._entered = False

    def before(self, part: Any, args: Any, kwargs: Any) -> Any:
        root = self._root()
        if part is not self._part() or root is None or not _idle(root):
            return None
        self._entered = True
        return root._get_fsdp_state()._pre_forward(root, args, kwargs)

    def after(self, part: Any, args: Any, output: Any) -> Any:
        root = self._root()
        if not self._entered or part is not self._part() or root is None:
            return output
        self._entered = False
        return _leave(root, args, output)

    before._torchdynamo_disable = after._torchdynamo_disable = True  # type: ignore[attr-defined]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Door":
        return self  # of a part that is copied, and is nobody's door then


def forget(module: Any, *_: Any) -> None:
    """Free the weights after an evaluation: no backward pass may follow that does, and the script may change them."""
    import torch

    if not (torch.is_grad_enabled() and module.training):
        module.reshard()


forget._torchdynamo_disable = True  # type: ignore[attr-defined]


def _idle(module: Any) -> bool:
    """Say whether a sharded module is in no forward or backward pass."""
    return bool(module._get_fsdp_state()._training_state.name == "IDLE")


def _leave(module: Any, args: Any, output: Any) -> Any:
    output = module._get_fsdp_state()._post_forward(module, args, output)
    forget(module)
    return output


def _entering(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def entered(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _idle(self) or not _holds_tensor((args, kwargs)):
            return method(self, *args, **kwargs)
        args, kwargs = self._get_fsdp_state()._pre_forward(self, args, kwargs)
        return _leave(self, args, method(self, *args, **kwargs))

    return entered


def keep_out_compiler(decorators: Any) -> None:
    """Have torch.compile take methods alone, not what is around them: it would be compiled anew for each module."""
    decorators.skip_code(_entering(_entering).__code__)


def _methods(kind: Any, *stops: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the methods that the script's own classes give a module."""
    others = {name for stop in stops for name in dir(stop)} - {"forward"}
    for name in dir(kind):
        method = inspect.getattr_static(kind, name)
        if name not in others and not name.startswith("__") and inspect.isfunction(method):
            yield name, method


def _callable_parts(module: Any) -> Iterator[Any]:
    """Yield the parts of a module that are no FSDP modules, and those inside of containers."""
    from torch import nn
    from torch.distributed.fsdp import FSDPModule

    for part in module.children():
        if isinstance(part, FSDPModule):
            continue
        if not isinstance(part, nn.ModuleList | nn.ModuleDict):
            yield part
        if isinstance(part, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            yield from _callable_parts(part)


def _holds_tensor(value: Any) -> bool:
    if hasattr(value, "grad_fn"):
        return True
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(map(_holds_tensor, parts))

"""A world of fake tensors on the CPU, in which any model can be built: no memory, no values, no GPU."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

T = TypeVar("T")


@cache
def _mode() -> FakeTensorMode:
    """Return the one mode of this process: fake tensors of two modes can't meet."""
    return FakeTensorMode(allow_non_fake_inputs=True)


@contextmanager
def fakes() -> Iterator[FakeTensorMode]:
    """Make every new tensor a fake one on the CPU, whatever device it asks for."""
    with ExitStack() as stack:
        stack.enter_context(without_init())
        stack.enter_context(_replaced(nn.Module, {"_apply": _apply}))
        stack.enter_context(_mode())
        stack.enter_context(_OnCpu())
        yield _mode()


@contextmanager
def without_init() -> Iterator[None]:
    """Let the functions of torch.nn.init do nothing: some read values, and there are none to set.

    Code that is imported meanwhile and keeps such a function has this one, too.
    """

    def untouched(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor

    functions = [name for name, _ in inspect.getmembers(nn.init, inspect.isfunction) if name.endswith("_")]
    with _replaced(nn.init, {name: untouched for name in functions if not name.startswith("_")}):
        yield


@contextmanager
def _replaced(place: Any, attributes: dict[str, Any]) -> Iterator[None]:
    before = {name: getattr(place, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(place, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(place, name, value)


def _apply(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    """Convert a module in place; torch's own way swaps tensors, which it can't do with those that are referred to."""
    for child in module.children() if recurse else ():
        child._apply(fn)  # type: ignore[no-untyped-call]
    for parameter in module._parameters.values():
        if parameter is not None:
            parameter.data = fn(parameter.data)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = fn(buffer)
    return module


class _OnCpu(TorchFunctionMode):
    """Sends calls for another device to the CPU, and lets the values of `linspace` be read.

    Models read rates that grow from block to block from a `linspace`.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.linspace:
            return _constant(args, kwargs)
        if "device" in kwargs and kwargs["device"] is not None:
            kwargs["device"] = torch.device("cpu")
        if func is torch.Tensor.to:
            args = tuple(
                "cpu" if isinstance(value, str | int) and i > 0 and not isinstance(value, bool) else value
                for i, value in enumerate(args)
            )
        args = tree_map_only(torch.device, lambda _: torch.device("cpu"), args)
        return func(*args, **kwargs)


def _constant(args: Any, kwargs: Any) -> torch.Tensor:
    """Make a fake tensor that knows its values."""
    with torch._C._DisableTorchDispatch():
        real = torch.linspace(*args, **(kwargs | {"device": "cpu"}))
    mode = _mode()
    return mode.fake_tensor_converter.from_real_tensor(mode, real, make_constant=True)


def made_fake(value: T, mode: FakeTensorMode) -> T:
    """Replace real tensors, of a model that was there before or of a batch, by fake ones."""

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        with torch._C.DisableTorchFunction():  # the conversion needs another device
            return mode.from_tensor(tensor)

    if not isinstance(value, nn.Module):
        return tree_map_only(torch.Tensor, fake, value)  # type: ignore[no-any-return]
    for module in value.modules():
        places: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for place in places:
            place.update({name: fake(tensor) for name, tensor in place.items() if tensor is not None})
    return value


def float_parameters_as(dtype: torch.dtype, model: nn.Module) -> None:
    """Give the parameters a dtype; quantised ones stay, and so do buffers, as under FSDP's mixed precision."""
    for parameter in model.parameters():
        if parameter.dtype in (torch.float32, torch.bfloat16, torch.float16):
            parameter.data = parameter.data.to(dtype)

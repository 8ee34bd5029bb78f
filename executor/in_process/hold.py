"""Models that stay in host memory until their blocks are sharded, since no GPU can hold one whole.

`.to(device)` and `.cuda()` of a module with trained parameters only write the device down, in a hook of the module and
of each of its parts. DistributedDataParallel takes it from there and moves the model in pieces. What is called before,
or never wrapped, is moved whole as it is called. A deep copy has the hooks too, and so waits like its original.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from advisor.executor.in_process import whole
from advisor.executor.in_process.meet import say

Guard = Callable[[Callable[..., Any]], Callable[..., Any]]


class Hold:
    """Holds back moves to devices of one type."""

    def __init__(self, accelerator: str, guard: Guard) -> None:
        self._accelerator = accelerator
        self._guard = guard
        self._move: Any = None  # torch's own `Module.to`

    def steer_modules(self, modules: Any) -> None:
        """Have `Module.to` and `.cuda` write down where to, and do the rest of what they were asked."""
        kind = modules.Module
        self._move, to_cuda = kind.to, kind.cuda
        hold_to, hold_cuda = self._guard(self._hold_to), self._guard(self._hold_cuda)

        @functools.wraps(kind.to)
        def to(module: Any, *args: Any, **kwargs: Any) -> Any:
            left = hold_to(module, args, kwargs)
            if left is None:
                return self._move(module, *args, **kwargs)
            return self._move(module, **left) if left else module

        @functools.wraps(to_cuda)
        def cuda(module: Any, device: Any = None) -> Any:
            return module if hold_cuda(module, device) else to_cuda(module, device)

        kind.to, kind.cuda = to, cuda

    def steer_fsdp1(self, fsdp: Any) -> None:
        """Let a script that builds FullyShardedDataParallel itself have what it asked for."""
        kind = fsdp.FullyShardedDataParallel
        build = kind.__init__

        @functools.wraps(build)
        def init(wrapper: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            self.move(module)
            build(wrapper, module, *args, **kwargs)

        kind.__init__ = init

    def move(self, module: Any) -> Any:
        """Move what was held back of a module; return the device, None where nothing was."""
        device = release(module)
        if device is not None:
            self._move(module, device)
        return device

    def _hold_to(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Hold the module back if it was to go to the accelerator, and return what else it was asked for."""
        import torch

        try:
            device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        except (TypeError, RuntimeError):
            return None  # torch says it in its own words
        if device is None or not self._hold(module, device):
            return None
        left = {"dtype": dtype, "memory_format": memory_format}
        return {name: value for name, value in left.items() if value is not None}

    def _hold_cuda(self, module: Any, device: Any) -> bool:
        import torch

        if not isinstance(device, torch.device):
            device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
        return self._hold(module, device)

    def _hold(self, module: Any, device: Any) -> bool:
        """Hold the module back if it has weights to shard in host memory; a later call counts, not an earlier one."""
        release(module)
        parameters = list(module.parameters())
        trained = any(parameter.requires_grad for parameter in parameters)
        here = any(parameter.device.type == "cpu" for parameter in parameters)
        if device.type != self._accelerator or not (trained and here) or any(map(whole.is_sharded, parameters)):
            return False
        origin = weakref.ref(module)

        def move_when_called(part: Any, *_: Any) -> None:
            held = origin()
            if held is None or all(one is not part for one in held.modules()):
                held = part  # of a copy
            if is_fully_sharded(held):
                release(held)  # the script did it itself, and what it sharded has moved
                return
            where = self.move(held)
            say(
                f"{type(held).__name__} is called before DistributedDataParallel wraps it, if it ever does: "
                f"it is moved whole to {where}, as the script asked"
            )

        move_when_called.goes_to = device  # type: ignore[attr-defined]
        move_when_called._torchdynamo_disable = True  # type: ignore[attr-defined]
        for part in module.modules():
            part.register_forward_pre_hook(move_when_called, prepend=True)
        return True


def release(module: Any) -> Any:
    """Hold nothing of a module back any more; return the device it was to go to, None where nothing was held back."""
    device = None
    for part in module.modules():
        hooks = part._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if hasattr(hook, "goes_to")]:
            device = hooks.pop(key).goes_to
    return device


def is_fully_sharded(module: Any) -> bool:
    """Say whether a module or a part of it is FSDP's."""
    from torch.distributed.fsdp import FSDPModule

    return any(isinstance(part, FSDPModule) for part in module.modules())


@contextlib.contextmanager
def in_pieces(module: Any, device: Any) -> Iterator[None]:
    """Let a module go to `device` and be sharded there, if it is not None; the weights from before stay where they are.

    The script and its optimizers hold them until they are given the sharded ones: on the GPU they would add up to the
    whole model.
    """
    parameters = [] if device is None else list(module.parameters())
    before = [(parameter, parameter.data) for parameter in parameters if not whole.is_sharded(parameter)]
    yield
    for parameter, data in before:
        parameter.data = data

"""Follows which part of a model runs, forward and backward: its blocks, and what runs between them."""

from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from advisor.trace.kernels import size_of
from advisor.trace.meter import At, Meter, Peak
from advisor.trace.parts import blocks

ACCUMULATE = 2**64 - 1  # the sequence number of the nodes that add to `.grad`


class Part(NamedTuple):
    """A stretch of the forward pass: one block, or what runs between two blocks."""

    name: str
    block: nn.Module | None


class Follower:
    """Tells a meter which part runs, and takes the peak of each.

    A node of the backward pass belongs to the part that made it. Nodes are numbered in the order in which they are
    made, so a part is found by the number that was next when it began. Parts that run again begin again.
    """

    def __init__(self, model: nn.Module, inputs: torch.dtype | None) -> None:
        """inputs: the dtype that floating-point inputs of blocks are cast to, as FSDP's mixed precision does."""
        self.meter = Meter(self._locate)
        self.parts = [Part("before the blocks", None)]
        self.entry = [0]  # bytes that enter a part and entered none before
        self.kept: list[int] = []  # bytes made by a part that stay for the backward pass
        self.peaks: list[tuple[At, Peak]] = []  # in the order of time
        self.owners: dict[nn.Parameter, int] = {}  # the part whose backward pass completes a parameter's gradient
        self._inputs = inputs
        self._numbers, self._begun = [_next_number()], [0]  # of the next node when a part began, and that part
        self._again: dict[int, int] = {}  # the part that runs again inside a node
        self._last: dict[nn.Module, int] = {}  # the part of a block's last call
        self._entered: set[object] = set()
        self._handles = [
            hook
            for name, block in blocks(model).items()
            for hook in (
                block.register_forward_pre_hook(self._entering(name), with_kwargs=True),
                block.register_forward_hook(self._leaving),
            )
        ]
        for parameter in model.parameters():
            self.meter.ignore(parameter)
            if parameter.requires_grad:
                hooked: Any = parameter
                self._handles.append(hooked.register_post_accumulate_grad_hook(self._complete))
        for buffer in model.buffers():
            self.meter.ignore(buffer)

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def end_forward(self) -> None:
        self._take_peak()
        kept = self.meter.kept()
        self.kept = [kept[part] for part in range(len(self.parts))]
        self.meter.at = At(len(self.parts) - 1, "backward")

    def end_backward(self) -> None:
        self._take_peak()

    def _entering(self, name: str) -> Callable[..., Any]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if self._inputs is not None:
                args, kwargs = cast((args, kwargs), self._inputs)
            if self.meter.at.direction == "forward":
                self._begin(Part(name, module), _floats((args, kwargs)))
                self._last[module] = self.meter.at.part
            else:
                self._run_again(self._last[module])
            return args, kwargs

        return enter

    def _leaving(self, module: nn.Module, args: Any, out: Any) -> None:
        if self.meter.at.direction == "forward":
            self._begin(Part(f"behind {self.parts[self.meter.at.part].name}", None), [])

    def _begin(self, part: Part, entering: list[torch.Tensor]) -> None:
        self._take_peak()
        new = {self.meter.known(tensor): size_of(tensor) for tensor in entering}
        self.parts.append(part)
        self.entry.append(sum(size for storage, size in new.items() if storage not in {None, *self._entered}))
        self._entered.update(new)
        self._mark(len(self.parts) - 1)
        self.meter.at = At(len(self.parts) - 1, "forward")

    def _run_again(self, part: int) -> None:
        """Checkpointing runs a block again inside a node of the backward pass."""
        node = torch._C._current_autograd_node()
        if node is not None:
            self._again[node._sequence_nr()] = part
        self._mark(part)

    def _mark(self, part: int) -> None:
        self._numbers.append(_next_number())
        self._begun.append(part)

    def _locate(self) -> None:
        node = torch._C._current_autograd_node() if self.meter.at.direction == "backward" else None
        number = ACCUMULATE if node is None else node._sequence_nr()
        if number == ACCUMULATE:
            return
        part = self._again.get(number)
        if part is None:
            part = self._begun[bisect_right(self._numbers, number) - 1]
        if part != self.meter.at.part:
            self._take_peak()
            self.meter.at = At(part, "backward")

    def _take_peak(self) -> None:
        self.peaks.append((self.meter.at, self.meter.take_peak()))

    def _complete(self, parameter: nn.Parameter) -> None:
        gradient = parameter.grad
        if gradient is not None and parameter not in self.owners:
            self.meter.complete(gradient, parameter.numel())
        self.owners[parameter] = self.meter.at.part
        parameter.grad = None


def _next_number() -> int:
    return int(torch._C._autograd._get_sequence_nr())


def _floats(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Cast the floating-point tensors of a value."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, value)

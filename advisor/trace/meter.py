"""Counts what a training step would allocate, compute and move while it runs on fake tensors."""

import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from advisor.trace.kernels import aten, costs

ROUND = 512  # bytes, the caching allocator's smallest step

Direction = Literal["forward", "backward"]


class At(NamedTuple):
    part: int
    direction: Direction


class Peak(NamedTuple):
    """The most bytes over a time, and how many gradients were whole at that moment."""

    live: int
    ready: int  # elements


class _Storage(NamedTuple):
    size: int  # bytes as allocated
    elements: int
    part: int  # that made it
    alive: Any  # the weak reference that reports its end


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the storages of all tensors that are made while it is active, and what each kernel costs.

    `locate` is called before each kernel and sets `at`; `amounts` sums FLOP, bytes and launches by it.
    """

    def __init__(self, locate: Callable[[], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.at = At(0, "forward")
        self.amounts: dict[At, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.largest = 0  # bytes of the largest storage
        self.logits = 0  # the most bytes in tensors of as many elements as the largest input of a log-softmax
        self._locate = locate
        self._storages: dict[int, _Storage] = {}
        self._ignored: dict[int, Any] = {}
        self._live = 0
        self._ready, self._ready_bytes = 0, 0
        self._peak, self._peak_bytes = Peak(0, 0), 0
        self._scores = 0  # elements of the largest input of a log-softmax
        self._by_elements: Counter[int] = Counter()  # bytes live

    def take_peak(self) -> Peak:
        """Return the peak since the last call: of activations and whole gradients together."""
        peak, self._peak = self._peak, Peak(self._live, self._ready)
        self._peak_bytes = self._live + self._ready_bytes
        return peak

    def complete(self, gradient: torch.Tensor, elements: int) -> None:
        """Note that a gradient is whole, which is kept from now on and not counted as live."""
        self._ready += elements
        self._ready_bytes += elements * gradient.element_size()

    def follow(self, tensor: torch.Tensor) -> bool:
        """Count a tensor's storage until it is freed; False where it is known already."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages or key in self._ignored:
            return False
        size = max(ROUND, -(-storage.nbytes() // ROUND) * ROUND)
        elements = storage.nbytes() // tensor.element_size()
        alive = weakref.ref(storage, lambda _: self._freed(key))
        self._storages[key] = _Storage(size, elements, self.at.part, alive)
        self._live += size
        self._by_elements[elements] += size
        self.largest = max(self.largest, size)
        self.logits = max(self.logits, self._by_elements[self._scores] if self._scores else 0)
        if self._live + self._ready_bytes > self._peak_bytes:
            self._peak, self._peak_bytes = Peak(self._live, self._ready), self._live + self._ready_bytes
        return True

    def ignore(self, tensor: torch.Tensor) -> None:
        """Leave a storage that lives on, such as a parameter's, out of the count."""
        storage = tensor.untyped_storage()
        self._ignored[storage._cdata] = storage

    def known(self, tensor: torch.Tensor) -> object:
        """Return what stands for the storage of a followed tensor, None for others."""
        found = self._storages.get(tensor.untyped_storage()._cdata)
        return found and found.alive

    def kept(self) -> Counter[int]:
        """Return the bytes live now by the part that made them."""
        found: Counter[int] = Counter()
        for storage in self._storages.values():
            found[storage.part] += storage.size
        return found

    def _freed(self, key: int) -> None:
        storage = self._storages.pop(key)
        self._live -= storage.size
        self._by_elements[storage.elements] -= storage.size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:  # each look at a fake tensor's device comes along here
            return func(*args, **kwargs)
        self._locate()
        out = func(*args, **kwargs)
        if func._overloadpacket is aten._log_softmax:
            self._scores = max(self._scores, args[0].numel())
        made = [self.follow(leaf) for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        if any(made) or func._schema.is_mutable:
            for kind, amount in costs(func, args, kwargs, out):
                self.amounts[self.at][kind] += amount
                self.amounts[self.at]["launches"] += 1
        return out

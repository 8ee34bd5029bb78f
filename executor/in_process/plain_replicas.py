"""Models of a plain script, replicated in place: equal on all ranks from the start, their gradients added up.

A model is known by an optimizer that is built over its parameters. Nothing is wrapped and no hook lies on a module, so
copies, pickles and `type(model)` are those of one process.
"""

import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from advisor.executor.in_process import drift
from advisor.executor.in_process.plain_backward import COMPARED, NOW_AND_THEN
from advisor.executor.in_process.plain_gradients import Gradients
from advisor.executor.in_process.plain_shards import Shards
from advisor.executor.in_process.plain_share import Ranks

DRIFT = (
    "parameters or buffers differ between ranks after step {step}: the script changes them, or gradients, by more than "
    "backward() and optimizer.step(), such as noise of its own or statistics of a slice; train on one GPU: --gpus 1"
)
WITHIN = (
    "an optimizer steps inside a backward pass, before gradients are those of all ranks: step after backward(), or "
    "train on one GPU: --gpus 1"
)
LBFGS = "LBFGS decides by losses that each rank has of its own slice: use another optimizer, or --gpus 1"


class Replicas:
    def __init__(self, ranks: Ranks, gradients: Gradients, observe: Callable[[Any], None]) -> None:
        self._ranks, self._gradients, self._observe = ranks, gradients, observe
        self._families: list[list[weakref.ref[Any]]] = []  # the parameters of each model
        self._known: set[int] = set()
        self.adopted = 0  # parameters so far
        self._roots: list[weakref.ref[Any]] = []
        self._steps = 0
        self.prepare: Callable[[Any], None] = lambda root: None  # a model before its first step
        self.shards: Shards | None = None

    def training(self) -> bool:
        """Say whether a model is in training mode, and known by its optimizer."""
        return any(root.training for ref in self._roots if (root := ref()) is not None)

    def knows(self, parameter: Any) -> bool:
        return id(parameter) in self._known or (self.shards is not None and self.shards.shows(parameter))

    def steer_optimizers(self, module: Any) -> None:
        add = module.Optimizer.add_param_group
        ranks = self._ranks

        @functools.wraps(add)
        def added(optimizer: Any, param_group: Any) -> None:
            add(optimizer, param_group)
            if type(optimizer).__name__ == "LBFGS" and ranks.ranks > 1 and not ranks.calls:
                raise RuntimeError(LBFGS)
            self.adopt(optimizer.param_groups[-1]["params"])

        def stepped(*_: Any) -> None:
            if self._gradients.running is not None and ranks.ranks > 1:
                raise RuntimeError(WITHIN)
            self._steps += 1
            if self._steps <= COMPARED or self._steps % NOW_AND_THEN == 0:
                self.compare()

        stepped._torchdynamo_disable = True  # type: ignore[attr-defined]
        module.Optimizer.add_param_group = added
        module.register_optimizer_step_post_hook(stepped)

    def adopt(self, parameters: list[Any]) -> None:
        """Make the models that own these parameters equal on all ranks, and average their gradients from now on."""
        import torch

        new = [parameter for parameter in parameters if id(parameter) not in self._known]
        if not new:
            return
        self._ranks.start()
        for root, owned in families(new):
            family = [one for one in owned if id(one) not in self._known]
            buffers = [] if root is None else list(root.buffers())
            if self._ranks.ranks > 1:
                with torch.no_grad():
                    spread([*family, *buffers])
            self.adopted += len(family)
            if root is not None:
                self.prepare(root)
                if self.shards is not None and family:
                    family = self.shards.adopt(root, family)
            for parameter in owned if root is None else root.parameters():
                if id(parameter) not in self._known:
                    self._known.add(id(parameter))
                    weakref.finalize(parameter, self._known.discard, id(parameter))
            if family:
                self._families.append([weakref.ref(parameter) for parameter in family])
                self._gradients.add(family)
            if root is not None:
                self._roots.append(weakref.ref(root))
                self._observe(root)

    def compare(self) -> None:
        """Stop on every rank where parameters or buffers differ between ranks."""
        import torch

        if self._ranks.ranks == 1 or not self._ranks.begun:
            return
        tensors = [ref() for family in self._families for ref in family]
        tensors += [one for ref in self._roots if (root := ref()) is not None for one in root.buffers()]
        with torch.set_grad_enabled(False):
            differ = drift.apart(tensors, self._ranks.gather)
            if differ or (self.shards is not None and self.shards.apart(self._ranks.gather)):
                raise RuntimeError(DRIFT.format(step=self._steps))


def families(parameters: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the outermost modules that own these parameters, each with all of its own, in the order of the first.

    Parameters that no module owns come last, without one.
    """
    from torch import nn

    wanted = {id(parameter): i for i, parameter in enumerate(parameters)}
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module) and "_parameters" in vars(one)]
    inner = {id(child) for module in modules for child in module._modules.values() if child is not None}
    found = []
    for root in modules:
        if id(root) not in inner:
            own = list(root.parameters())
            places = [wanted[id(one)] for one in own if id(one) in wanted]
            if places:
                found.append((min(places), root, own))
    taken: set[int] = set()
    for _, root, own in sorted(found, key=lambda one: (one[0], len(one[2]))):
        yield root, own
        taken.update(map(id, own))
    left = [parameter for parameter in parameters if id(parameter) not in taken]
    if left:
        yield None, left


def spread(tensors: list[Any]) -> None:
    """Give all ranks rank 0's tensors."""
    import torch.distributed as dist

    for tensor in tensors:
        there = tensor.detach().contiguous()
        dist.broadcast(there, 0)
        if there.data_ptr() != tensor.data_ptr():
            tensor.copy_(there)

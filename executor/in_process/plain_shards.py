"""Models of a plain script, sharded in place under plans for FSDP and hybrid sharding.

What `sharded` does at the wrap call of a DDP script is done here as an optimizer is built. Beyond that, a plain script
calls any part of its model and reads its weights wherever it likes: `plain_doors` gathers them for such calls, and what
would go wrong unseen stops the run.
"""

import functools
import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from advisor.executor.in_process import fsdp_state, plain_doors, plain_whole, sharded, whole
from advisor.executor.in_process.drift import Gather
from advisor.executor.in_process.plain_share import Ranks, place

LOST = (
    "gradients of {name} came from outside of the model's own calls{where}, where sharding does not collect them (the "
    "loss takes the weight itself, the model returns an object of its own, or what it returns was changed in place): "
    "type --only ddp for another plan"
)
CHANGED = (
    "{name} was changed between a forward pass and its backward pass{where}, and sharding would lose that: change "
    "weights after optimizer.step(), or type --only ddp for another plan"
)
GRAPH = (
    "autograd.grad(create_graph=True){where} goes through a sharded model twice, which FSDP can't: type --only ddp for "
    "another plan"
)
DIRECT = (
    "the loss takes {name} itself{where}, which is in shards where the model is not being called, and this batch has "
    "no sample for this rank: give the loader drop_last=True, or type --only ddp for another plan"
)
HAS_GRADIENT = (
    "{name} has a gradient before its optimizer is built{where}: build the optimizer first, or type --only ddp"
)
ELSEWHERE = (
    "the model is on the {here} as its optimizer is built{where}, and the plan shards it on the GPU: move it there "
    "before, or type --only ddp for another plan"
)
MOVED = (
    "{name} is moved or cast after its optimizer was built{where}, when it is in shards: do that before, or type "
    "--only ddp for another plan"
)


class Shards:
    """The sharded models of a process."""

    def __init__(self, plan: dict[str, Any], ranks: Ranks, note: Callable[..., None]) -> None:
        self._plan, self._ranks, self._note = plan, ranks, note
        self._sharding = sharded.Sharding(plan, note)
        self._models: list[Model] = []
        self.reached = False  # the last backward pass went through a sharded model

    def adopt(self, root: Any, parameters: list[Any]) -> list[Any]:
        """Shard a model whose weights are equal on all ranks; return the parameters that stay whole on each rank.

        These are the ones that can't be divided, and those of a model that has a part or a weight of a sharded one.
        """
        from torch import distributed as dist
        from torch import nn

        if isinstance(root, nn.ModuleList | nn.ModuleDict):  # several models, of which each is called by itself
            parts = [(part, set(map(id, part.parameters()))) for part in root.children()]
            left = [self.adopt(part, [one for one in parameters if id(one) in ids]) for part, ids in parts]
            return [one for part in left for one in part]
        outer, root = root, getattr(root, "_orig_mod", root)  # of a compiled model
        if any(map(sharded.is_sharded, root.modules())) or any(map(whole.is_sharded, root.parameters())):
            return [one for one in parameters if not whole.is_sharded(one)]
        kept = undivided(root)
        whole_ids = set(map(id, kept))
        if whole_ids.issuperset(map(id, root.parameters())):
            return parameters
        self._refuse(root, kept)
        names = self._sharding.shard(root, dist.group.WORLD, None, ignored=kept, at="the optimizer")
        fsdp_state.reduce_unused(root)  # slices of one batch may use other weights than another
        for part in (root, *map(root.get_submodule, names)):
            plain_whole.keep_face(part)
        root._get_fsdp_state()._lazy_init()  # else a block that is called first takes itself for the whole model
        if not self._models:
            plain_whole.steer_tensors()
        self._sharding.prepare()
        whole.ModelState(self._sharding.meetings.meet).install(root)
        plain_doors.open_doors(root, compiled=outer is not root)
        self._models.append(Model(root, self._ranks))
        recomputed = sum(map(recomputes, map(root.get_submodule, names)))
        given = sharded.in_effect(self._plan, type(root).__name__, len(names), recomputed, None)
        self._note("ddp", given=given, overridden={}, kept={})
        return [one for one in parameters if id(one) in whole_ids]

    def _refuse(self, root: Any, kept: list[Any]) -> None:
        sharded.refuse_unshardable(root, self._plan, kept)
        for name, parameter in root.named_parameters():
            if parameter.grad is not None:
                raise RuntimeError(HAS_GRADIENT.format(name=name, where=place()))
            if parameter.device.type != self._plan["launcher"]["device"]:
                raise RuntimeError(ELSEWHERE.format(here=parameter.device.type.upper(), where=place()))

    def models(self) -> list["Model"]:
        self._models = [model for model in self._models if model.root() is not None]
        return self._models

    def steer_autograd(self, autograd: Any) -> None:
        """Watch what backward passes do to sharded models; before others change them, who scale losses."""
        original, grad = autograd.backward, autograd.grad

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> None:
            models = self.models()
            for model in models:
                model.pass_begins()
            original(*args, **kwargs)
            ended = [model.pass_ended() for model in models]
            self.reached = any(ended)

        @functools.wraps(grad)
        def gradients(*args: Any, **kwargs: Any) -> Any:
            models = self.models()
            if models and self._ranks.begun and (kwargs.get("create_graph") or any(args[4:5])):
                raise RuntimeError(GRAPH.format(where=place()))
            for model in models:
                model.pass_begins()
            found = grad(*args, **kwargs)
            for model in models:
                model.drop_new()
            return found

        autograd.backward, autograd.grad = backward, gradients

    def steer_modules(self, modules: Any) -> None:
        """Have what is asked of all parameters of a module reach the shards, while it shows the gathered weights."""
        kind = modules.Module
        zero_grad, requires_grad_, apply = kind.zero_grad, kind.requires_grad_, kind._apply

        @functools.wraps(zero_grad)
        def zeroed(module: Any, set_to_none: bool = True) -> None:
            zero_grad(module, set_to_none)
            for shard in self._behind(module.parameters()).values():
                if set_to_none:
                    shard.grad = None
                elif shard.grad is not None:
                    shard.grad.zero_()

        @functools.wraps(requires_grad_)
        def required(module: Any, requires_grad: bool = True) -> Any:
            for shard in self._behind(module.parameters()).values():
                shard.requires_grad_(requires_grad)
            return requires_grad_(module, requires_grad)

        @functools.wraps(apply)
        def applied(module: Any, change: Any, recurse: bool = True) -> Any:
            shards = {name: one for name, one in module._parameters.items() if whole.is_sharded(one)}
            for name, shard in shards.items():
                before = shard.to_local().new_empty(0)
                after = change(before)
                if (after.device, after.dtype) != (before.device, before.dtype):
                    raise RuntimeError(MOVED.format(name=name, where=place()))
            module._parameters.update(dict.fromkeys(shards))  # they are where they are to be
            try:
                return apply(module, change, recurse)
            finally:
                module._parameters.update(shards)

        kind.zero_grad, kind.requires_grad_, kind._apply = zeroed, required, applied

    def steer_optimizers(self, module: Any) -> None:
        add = module.Optimizer.add_param_group

        @functools.wraps(add)
        def added(optimizer: Any, param_group: Any) -> None:
            given = param_group["params"] if isinstance(param_group, dict) else None
            if self.models() and given is not None and not hasattr(given, "grad_fn") and not isinstance(given, set):
                given = list(given)
                behind = self._behind(one[1] if isinstance(one, tuple) else one for one in given)
                param_group["params"] = [_exchanged(one, behind) for one in given] if behind else given
            add(optimizer, param_group)
            parameters = optimizer.param_groups[-1]["params"]
            if len({whole.is_sharded(one) for one in parameters}) > 1:
                optimizer.param_groups[-1]["foreach"] = False  # torch refuses lists of shards and whole tensors

        def stepped(optimizer: Any, *_: Any) -> None:
            stepped_on = {id(one) for group in optimizer.param_groups for one in group["params"]}
            for model in self.models():
                model.reshard(stepped_on)

        stepped._torchdynamo_disable = True  # type: ignore[attr-defined]
        module.Optimizer.add_param_group = added
        module.register_optimizer_step_post_hook(stepped)

    def shows(self, parameter: Any) -> bool:
        """Say whether this is a weight that a model shows whole now."""
        return any(one._unsharded_param is parameter for model in self.models() for one in model.gathered())

    def _behind(self, parameters: Any) -> dict[int, Any]:
        """Return the shards of those parameters that are gathered weights, by the id of these."""
        gathered = {id(one._unsharded_param): one for model in self.models() for one in model.gathered()}
        if not gathered:
            return {}
        return {id(one): gathered[id(one)].sharded_param for one in parameters if id(one) in gathered}

    def apart(self, gather: Gather) -> bool:
        """Say whether ranks that hold the same shards, those of copies of a model, hold different numbers."""
        import torch

        size = self._plan["shard_size"] if self._plan["strategy"] == "hsdp" else self._ranks.ranks
        shards = [one.sharded_param.to_local().double().sum().cpu() for m in self.models() for one in m.parts]
        total = float(torch.stack(shards).sum()) if shards else 0.0
        everyone = gather([total, float(self._ranks.rank % size)])
        several = len({tuple(one) for one in everyone}) > len({index for _, index in everyone})
        return several and not any(math.isnan(one) for one, _ in everyone)


class Model:
    """One sharded model and what FSDP keeps of its parameters."""

    def __init__(self, root: Any, ranks: Ranks) -> None:
        self.root = weakref.ref(root)
        self._ranks = ranks
        self._groups = list(fsdp_state.all_groups(root))
        self.parts = [part for group in self._groups for part in group.fsdp_params]
        self._hooked: set[tuple[int, bool]] = set()  # parts that tell of their gradients, gathered and in shards
        self._reached: set[int] = set()  # parts that the pass gave gradients on this rank
        self._without: list[int] = []  # parts that had no gradient before it

    def gathered(self) -> Iterator[Any]:
        """Yield the parameters that the model shows whole now."""
        for group in self._groups:
            if group.is_unsharded:
                yield from group.fsdp_params

    def pass_begins(self) -> None:
        for number, part in enumerate(self.parts):
            if not part.sharded_param.requires_grad:
                continue
            if (number, True) not in self._hooked and hasattr(part, "_unsharded_param"):
                self._hooked.add((number, True))
                part._unsharded_param.register_post_accumulate_grad_hook(functools.partial(self._reach, number))
            if (number, False) not in self._hooked:
                self._hooked.add((number, False))
                part.sharded_param.register_hook(functools.partial(self._direct, number))
        for part in self.gathered():
            if (
                part._unsharded_param.requires_grad != part.sharded_param.requires_grad
                or part._unsharded_param._version
            ):
                raise RuntimeError(CHANGED.format(name=part._param_fqn, where=place()))
        self._reached.clear()
        self._without = [number for number, part in enumerate(self.parts) if part.sharded_param.grad is None]

    def pass_ended(self) -> bool:
        """Say whether the pass went through this model; where no rank's did through a weight, take its zeros away."""
        import torch
        import torch.distributed as dist

        for part in self.parts:
            if hasattr(part, "_unsharded_param") and part._unsharded_param.grad is not None:
                raise RuntimeError(LOST.format(name=part._param_fqn, where=place()))
        if not self._reached:
            return False
        trained = [number for number, part in enumerate(self.parts) if part.sharded_param.requires_grad]
        flags = torch.tensor([float(number in self._reached) for number in trained], device=self.parts[0].device)
        dist.all_reduce(flags)
        if not self._reached.issuperset(trained):
            nowhere = {number for number, ranks in zip(trained, flags.tolist(), strict=True) if not ranks}
            self._take_zeros_away(nowhere)
        return True

    def drop_new(self) -> None:
        """Take away what a pass that is to leave no gradients has left."""
        self._take_zeros_away(set(range(len(self.parts))))

    def _take_zeros_away(self, numbers: set[int]) -> None:
        for number in numbers.intersection(self._without):
            self.parts[number].sharded_param.grad = None

    def reshard(self, ids: set[int]) -> None:
        """Free gathered weights, if these parameters are this model's: they are out of date."""
        for group in self._groups:
            if not group.is_sharded and any(id(part.sharded_param) in ids for part in group.fsdp_params):
                group.reshard()

    def _reach(self, number: int, _: Any) -> None:
        self._reached.add(number)

    def _direct(self, number: int, gradient: Any) -> Any:
        """Correct the gradient of a loss that takes a weight itself: it is no mean over slices, so it has no share."""
        factor = self._ranks.factor()
        if not factor:
            raise RuntimeError(DIRECT.format(name=self.parts[number]._param_fqn, where=place()))
        self._reached.add(number)
        return gradient.redistribute(placements=self.parts[number].sharded_param.placements) / factor


def undivided(root: Any) -> list[Any]:
    """Return the parameters that FSDP can't divide: single numbers, views of others, those with hooks, not in order."""
    parameters = list(root.parameters())
    storages = Counter(one.untyped_storage().data_ptr() for one in parameters if one.numel())
    return [
        one
        for one in parameters
        if not one.ndim
        or not one.is_contiguous()
        or storages[one.untyped_storage().data_ptr()] > 1
        or any(getattr(one, kind, None) for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"))
    ]


def recomputes(block: Any) -> bool:
    from torch.distributed._composable.checkpoint_activation import checkpoint

    return checkpoint.state(block) is not None


def _exchanged(item: Any, behind: dict[int, Any]) -> Any:
    if isinstance(item, tuple):  # a parameter with its name
        return item[0], behind.get(id(item[1]), item[1])
    return behind.get(id(item), item)

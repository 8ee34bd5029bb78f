"""DistributedDataParallel that shards: what a plan for FSDP makes of the wrap call of a DDP script.

The class stays DistributedDataParallel and keeps the wrapped model as `.module`; its methods are replaced. Every rank
does the same, so what can't be sharded is refused before training starts.
"""

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Collection
from typing import Any

from advisor.executor.in_process import fsdp_state, hold, repoint, whole
from advisor.executor.in_process.blocks import blocks, recompute
from advisor.executor.in_process.meet import EVALUATION_SECONDS, Meetings, say

SAME_FORWARDS = (
    "make the same number of forward passes on every rank, in evaluation as well, or evaluate a copy.deepcopy() of the "
    "model that all ranks make"
)
# Arguments of DDP that mean nothing here, with the values that ask for nothing.
DDP_ONLY = {"bucket_cap_mb": None, "gradient_as_bucket_view": False, "static_graph": False, "bucket_cap_mb_list": None}


class Sharding:
    """A plan's way to shard, and what all models of the process share."""

    def __init__(self, plan: dict[str, Any], note: Callable[..., None]) -> None:
        self.plan = plan
        self.note = note
        self.meetings = Meetings()
        self._prepared = False

    def prepare(self) -> None:
        """Bring optimizers, torch.save, arithmetic with copies and what weights make in line with a sharded model."""
        if self._prepared:
            return
        self._prepared = True
        whole.steer_optimizers(self.meetings.meet, sys.modules["torch.optim.optimizer"])
        whole.steer_save(self.meetings.meet, sys.modules["torch.serialization"])
        whole.let_copies_follow()
        whole.let_weights_make_tensors()

    def shard(
        self, module: Any, group: Any, device: Any, ignored: Collection[Any] = (), at: str = repoint.WRAP
    ) -> list[str]:
        """Shard a model in place, each block and then the rest; return the names of the blocks.

        `device` is where it goes from host memory, None where it is there; `ignored` parameters stay whole.
        """
        from torch.distributed.fsdp import fully_shard

        fully_shard = getattr(fully_shard, "as_torch_has_it", fully_shard)
        kind = device.type if device is not None else device_type(module)
        settings = {"mesh": mesh(self.plan, kind, group), "ignored_params": set(ignored)} | policies(self.plan)
        found = blocks(module)
        refuse_mixed_dtypes(module, found)
        old = dict(module.named_parameters(remove_duplicate=False))
        for block in found.values():
            with hold.in_pieces(block, device):
                fully_shard(block, **settings, reshard_after_forward=self.plan["reshard_after_forward"])
        if "mp_policy" in settings and settings["mp_policy"].param_dtype is not None:  # losses are computed as before
            settings["mp_policy"] = dataclasses.replace(settings["mp_policy"], output_dtype=original_dtype(module))
        # The root's weights are needed again as soon as the backward pass begins: torch's own default keeps them.
        with hold.in_pieces(module, device):
            fully_shard(module, **settings, reshard_after_forward=None if self.plan["reshard_after_forward"] else False)
        new = dict(module.named_parameters(remove_duplicate=False))
        for name, parameter in new.items():
            parameter.__dict__.update(old[name].__dict__)  # marks that scripts set, `no_weight_decay` and the like
        pairs = [(old.pop(name), parameter) for name, parameter in new.items()]
        repoint.repoint(pairs, whole.shard_state, at)
        fsdp_state.let_data_be_set(module)
        return list(found)


def mesh(plan: dict[str, Any], device: str, group: Any) -> Any:
    """Make the plan's mesh over a process group: all ranks, or copies of the model times the ranks that share one."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    ranks = dist.get_world_size(group)
    if plan["strategy"] != "hsdp":
        return DeviceMesh.from_group(group, device)
    if group is not dist.group.WORLD or ranks % plan["shard_size"]:
        raise RuntimeError(
            f"the plan shares a copy of the model among {plan['shard_size']} ranks, which the {ranks} ranks of this "
            "DistributedDataParallel can't be split into: type --only ddp,fsdp for another plan"
        )
    shape = (ranks // plan["shard_size"], plan["shard_size"])
    return init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard"))


def policies(plan: dict[str, Any]) -> dict[str, Any]:
    """Translate precision and offload into what `fully_shard` takes."""
    import torch
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    wire = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[plan["gradient_dtype"]]
    found: dict[str, Any] = {}
    if plan["precision"] == "bf16-params":
        found["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=wire or torch.float32, cast_forward_inputs=True
        )
    elif wire is not None:
        found["mp_policy"] = MixedPrecisionPolicy(reduce_dtype=wire)
    if plan["cpu_offload"]:
        found["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
    return found


def device_type(module: Any) -> str:
    types = {parameter.device.type for parameter in module.parameters()}
    return "cuda" if "cuda" in types else "cpu"


def original_dtype(module: Any) -> Any:
    return next(parameter.dtype for parameter in module.parameters() if parameter.is_floating_point())


def refuse_mixed_dtypes(module: Any, found: dict[str, Any]) -> None:
    """Say now what FSDP would say at the first step: the weights of one group that are trained must be of one dtype."""
    inside = {id(parameter) for block in found.values() for parameter in block.parameters()}
    groups = {name: list(block.parameters()) for name, block in found.items()}
    groups["the model outside its blocks"] = [p for p in module.parameters() if id(p) not in inside]
    for name, parameters in groups.items():
        dtypes = {str(parameter.dtype) for parameter in parameters if parameter.requires_grad}
        if len(dtypes) > 1:
            kinds = " and ".join(sorted(dtypes))
            raise RuntimeError(
                f"FSDP can't shard {name}: it trains weights of {kinds} together; type --only ddp for another plan"
            )


def refuse_unshardable(module: Any, plan: dict[str, Any], ignored: Collection[Any] = ()) -> None:
    """Refuse what FSDP can't shard, and 16-bit weights for layers whose running statistics stay fp32."""
    from torch.nn.modules.batchnorm import _BatchNorm

    if plan["precision"] == "bf16-params" and any(isinstance(part, _BatchNorm) for part in module.modules()):
        raise RuntimeError(
            "FSDP can't hold the weights of BatchNorm in 16 bits beside its fp32 statistics: "
            'write precision "fp32" in the plan and use torch.autocast in the script'
        )
    kept = set(map(id, ignored))
    for name, parameter in module.named_parameters():
        if id(parameter) in kept:
            continue
        if parameter.ndim == 0:
            raise RuntimeError(f"FSDP can't shard {name}, a single number: make it a tensor of shape [1]")
        hooks = [getattr(parameter, kind, None) for kind in ("_backward_hooks", "_post_accumulate_grad_hooks")]
        if any(hooks):
            raise RuntimeError(
                f"{name} has gradient hooks, which sharding loses: register them after DistributedDataParallel(...)"
            )


def synchronize(module: Any, group: Any, device: Any) -> None:
    """Give all ranks the weights and buffers of the first, as DDP does when it is built.

    Those that wait in host memory for `device` go over it one by one: NCCL can't send them from where they are.
    """
    import torch
    import torch.distributed as dist

    first = dist.get_global_rank(group, 0)
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            there = tensor.detach().to(device=device)
            dist.broadcast(there, first, group)
            if device is not None:
                tensor.copy_(there)


def steer(sharding: Sharding, observe: Callable[[Any], None], distributed: Any) -> None:
    """Replace the methods of DistributedDataParallel."""
    kind = distributed.DistributedDataParallel
    build, plan = kind.__init__, sharding.plan
    signature = inspect.signature(build)

    @functools.wraps(build)
    def init(*args: Any, **kwargs: Any) -> None:
        call = bind(signature, args, kwargs)
        if call is None or not any(parameter.requires_grad for parameter in call["module"].parameters()):
            build(*args, **kwargs)  # DDP says in its own words what is wrong
            return
        wrap(sharding, call)
        observe(call["self"])

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        if not is_sharded(self.module):
            return self.module(*args, **kwargs)
        training = torch.is_grad_enabled()
        if self.require_forward_param_sync and self.broadcast_buffers_here:
            synchronize_buffers(self)
        wanted = self.require_backward_grad_sync or plan["sync_each_micro_batch"]
        if training and wanted != self.reduces_gradients:
            self.module.set_requires_gradient_sync(wanted)
            self.reduces_gradients = wanted
        output = self.module(*args, **kwargs)
        self.require_forward_param_sync = training and self.require_backward_grad_sync  # after it, as in DDP's own
        return output

    def copied(self: Any, memo: dict[int, Any]) -> Any:
        import copy

        other = object.__new__(type(self))
        memo[id(self)] = other
        memo[id(self.process_group)] = self.process_group
        hooks = {name: type(value)() for name, value in vars(self).items() if name.endswith("_hooks")}
        vars(other).update(copy.deepcopy(vars(self) | hooks, memo))
        return other

    def register_comm_hook(self: Any, state: Any, hook: Any) -> None:
        say(f"the communication hook {getattr(hook, '__name__', hook)} has no effect: the plan shards the model")

    def join(self: Any, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("join() needs DDP, and the plan shards the model: type --only ddp for another plan")

    kind.__init__, kind.forward, kind.__deepcopy__ = init, forward, copied
    kind.register_comm_hook, kind.join = register_comm_hook, join
    kind._set_static_graph = lambda self: None
    kind._get_ddp_logging_data = lambda self: {}  # of a reducer, which there is none of


def bind(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    try:
        call = signature.bind(*args, **kwargs)
    except TypeError:
        return None
    call.apply_defaults()
    return call.arguments


def is_sharded(module: Any) -> bool:
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def wrap(sharding: Sharding, call: dict[str, Any]) -> None:
    """Do the work of DDP's constructor."""
    import torch
    import torch.distributed as dist
    from torch import nn

    self, module, plan = call["self"], call["module"], sharding.plan
    group = call["process_group"] or dist.group.WORLD
    if call.get("device_mesh") is not None:
        group = call["device_mesh"].get_group()
    again = is_sharded(module)  # Lightning wraps the model for each fit() or test()
    if not again:
        refuse_unshardable(module, plan)
    name = type(module).__name__
    nn.Module.__init__(self)
    self.module = module
    self.process_group = group
    self.device_ids, self.output_device, self.dim = call["device_ids"], call["output_device"], call["dim"]
    device = hold.release(module)
    self.device = next(module.parameters()).device if device is None else device
    self.device_type = self.device.type
    self.find_unused_parameters = call["find_unused_parameters"]
    self.gradient_as_bucket_view, self.static_graph = call["gradient_as_bucket_view"], call["static_graph"]
    self.require_backward_grad_sync = self.require_forward_param_sync = True
    self.reduces_gradients = True
    wanted = [call.get(name) for name in ("broadcast_buffers", "forward_sync_buffers")]
    self.__dict__["broadcast_buffers_here"] = False not in wanted and any(True for _ in module.buffers())
    if again:
        return
    if call["init_sync"]:
        synchronize(module, group, device)
    wanted = plan["activation_checkpointing"]
    recomputed = recompute(module, wanted) if wanted != "none" else 0
    with torch.accelerator.device_index(getattr(device, "index", None)):  # which the script may not have set
        names = sharding.shard(module, group, device)
    if self.find_unused_parameters:
        fsdp_state.reduce_unused(module)
    type(module).__deepcopy__ = whole.copy_whole
    for block in names:
        type(module.get_submodule(block)).__deepcopy__ = whole.copy_whole
    sharding.prepare()
    whole.ModelState(sharding.meetings.meet).install(self)
    meet_in_evaluation(module, sharding.meetings)
    if not names:
        say("the model has no repeated blocks: it is sharded as one piece, which is gathered whole in each step")
    sharding.note("ddp", given=in_effect(plan, name, len(names), recomputed, device), overridden={}, kept={})
    ignored = [argument for argument, nothing in DDP_ONLY.items() if call.get(argument) != nothing]
    if ignored:
        say(f"{', '.join(ignored)} of DistributedDataParallel mean nothing here: the plan shards the model")


def in_effect(plan: dict[str, Any], name: str, blocks: int, recomputed: int, device: Any) -> dict[str, Any]:
    """Return what of the plan was done to a model, for the report; `device` is where it went from host memory."""
    done = {"fully_shard": f"{blocks} blocks and the rest of {name}"}
    done["reshard_after_forward"] = plan["reshard_after_forward"]
    if plan["strategy"] == "hsdp":
        done["shard_size"] = plan["shard_size"]
    if device is not None:
        done["shard_from"] = plan["shard_from"]
    if recomputed:
        of_all = f" of {blocks}" if plan["activation_checkpointing"] == "selective" else ""
        done["activation_checkpointing"] = f"{recomputed}{of_all} blocks"
    return done


def meet_in_evaluation(module: Any, meetings: Meetings) -> None:
    """Have the ranks meet before a forward pass without gradients, which scripts may make on one rank alone."""
    import torch

    def meet(*_: Any) -> None:
        if not torch.is_grad_enabled():
            meetings.meet("a forward pass in evaluation", SAME_FORWARDS, EVALUATION_SECONDS)

    meet._torchdynamo_disable = True  # type: ignore[attr-defined]
    module.register_forward_pre_hook(meet, prepend=True)


def synchronize_buffers(model: Any) -> None:
    import torch
    import torch.distributed as dist

    first = dist.get_global_rank(model.process_group, 0)
    with torch.no_grad():
        for buffer in model.module.buffers():
            dist.broadcast(buffer.detach(), first, model.process_group)

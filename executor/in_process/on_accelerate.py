"""Scripts on accelerate, Transformers' Trainer and TRL. Most of the plan reaches them by environment variables.

What they can't say is said here: how blocks are found, what dtype gradients are sent in, that CPUs can shard as well.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from advisor.executor.in_process import sharded
from advisor.executor.in_process.blocks import blocks, recompute
from advisor.executor.in_process.fsdp_state import groups_of

Call = Callable[..., Any]


def acts(plan: dict[str, Any], note: Call, guard: Call) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Name the modules of accelerate and transformers that are steered, and how."""
    if plan["strategy"] in ("fsdp", "hsdp"):
        yield "accelerate.state", let_cpus_shard
    yield "accelerate.accelerator", functools.partial(steer_prepare, plan, note, guard)
    if plan.get("micro_batch"):
        yield "transformers.training_args", functools.partial(steer_micro_batch, plan, note, guard)


def let_cpus_shard(state: Any) -> None:
    """Make processes on CPUs "FSDP" where accelerate would only make GPUs so; its sharding itself works on both."""
    kind = state.AcceleratorState
    build = kind.__init__

    @functools.wraps(build)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        plugin = kwargs.get("fsdp_plugin")
        if plugin is not None and self.distributed_type == state.DistributedType.MULTI_CPU:
            self.distributed_type = state.DistributedType.FSDP
            self.fsdp_plugin = plugin
            state.PartialState._shared_state["distributed_type"] = self.distributed_type

    kind.__init__ = init


def steer_prepare(plan: dict[str, Any], note: Call, guard: Call, accelerator: Any) -> None:
    """Complete the sharding plugin before a model is prepared, and ask afterwards what it all became."""
    kind = accelerator.Accelerator
    prepare = kind.prepare
    told: list[int] = []

    @functools.wraps(prepare)
    def prepared(self: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        models = [one for one in args if isinstance(one, torch.nn.Module)]
        if models and self.is_fsdp2 and plan["strategy"] in ("fsdp", "hsdp"):
            complete(self.state.fsdp_plugin, models, plan)
            equalize(models)
            if plan["activation_checkpointing"] == "selective":  # accelerate's own setting takes all blocks
                for model in models:
                    guard(recompute)(model, "selective")
        result = prepare(self, *args, **kwargs)
        if models and self.is_fsdp2:
            share_statistics(self._models[-1])
        if models and not told:
            told.append(1)
            guard(ask)(self, plan, note)
        return result

    kind.prepare = prepared


def observe_sharded(observe: Call, accelerator: Any) -> None:
    """Look at the models that accelerate shards; those that it gives to DistributedDataParallel are seen there."""
    kind = accelerator.Accelerator
    prepare = kind.prepare

    @functools.wraps(prepare)
    def prepared(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = prepare(self, *args, **kwargs)
        if self.is_fsdp2 and self._models:
            observe(self._models[-1])
        return result

    kind.prepare = prepared


def complete(plugin: Any, models: list[Any], plan: dict[str, Any]) -> None:
    """Name the classes of the blocks, and send gradients as the plan says: accelerate sends them as it computes."""
    if plugin.transformer_cls_names_to_wrap is None:
        found = {type(block).__name__ for model in models for block in blocks(model).values()}
        if found:  # else the model's own list, `_no_split_modules`
            plugin.transformer_cls_names_to_wrap = sorted(found)
    policy = sharded.policies(plan).get("mp_policy")
    if plugin.mixed_precision_policy is None:
        plugin.mixed_precision_policy = policy
    elif plan["gradient_dtype"] == "fp32":
        import torch

        plugin.mixed_precision_policy = dataclasses.replace(plugin.mixed_precision_policy, reduce_dtype=torch.float32)


def equalize(models: list[Any]) -> None:
    """Give all ranks the weights of the first where they differ, as DDP would; accelerate's FSDP takes each rank's."""
    import torch
    import torch.distributed as dist

    tensors = [tensor.detach() for model in models for tensor in [*model.parameters(), *model.buffers()]]
    tensors = [tensor for tensor in tensors if not tensor.is_meta and not hasattr(tensor, "placements")]
    sums = torch.stack([tensor.double().sum().cpu() for tensor in tensors]) if tensors else torch.zeros(1, device="cpu")
    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, sums)
    for i, tensor in enumerate(tensors):
        if any(not torch.equal(theirs[i], everywhere[0][i]) for theirs in everywhere):
            dist.broadcast(tensor, 0)


def share_statistics(model: Any) -> None:
    """Give all ranks rank 0's running statistics before each forward pass, as DDP does; FSDP leaves each its own."""
    import torch
    import torch.distributed as dist
    from torch.nn.modules.batchnorm import _NormBase

    buffers = [buffer for part in model.modules() if isinstance(part, _NormBase) for buffer in part.buffers()]

    def broadcast(*_: Any) -> None:
        with torch.no_grad():
            for buffer in buffers:
                dist.broadcast(buffer, 0)

    broadcast._torchdynamo_disable = True  # type: ignore[attr-defined]
    if buffers:
        model.register_forward_pre_hook(broadcast)


def ask(accelerator: Any, plan: dict[str, Any], note: Call) -> None:
    """Write down what the plan wants, and what the Accelerator and its model say they are."""
    wanted, became = wanted_of(plan), became_of(accelerator, accelerator._models[-1])
    name = f"accelerate {sys.modules['accelerate'].__version__}"
    note("library", name=name, wanted=wanted, became={what: became.get(what) for what in wanted})


def wanted_of(plan: dict[str, Any]) -> dict[str, Any]:
    ranks = plan["launcher"]["nproc_per_node"]
    replicated = "MULTI_CPU" if plan["launcher"]["device"] == "cpu" else "MULTI_GPU"
    shards = plan["strategy"] in ("fsdp", "hsdp")
    wanted: dict[str, Any] = {"processes": ranks, "type": "FSDP" if shards else replicated if ranks > 1 else "NO"}
    if shards:
        hybrid = [ranks // plan["shard_size"], plan["shard_size"]]
        wanted["mesh"] = hybrid if plan["strategy"] == "hsdp" else [ranks]
        wanted["reshard_after_forward"] = plan["reshard_after_forward"]
    if plan["cpu_offload"]:
        wanted["weights between steps"] = "cpu"
    if plan["activation_checkpointing"] != "none":
        wanted["recomputation"] = True
    return wanted


def became_of(accelerator: Any, model: Any) -> dict[str, Any]:
    from torch.distributed._composable.checkpoint_activation import checkpoint

    parts = list(model.modules())
    weights = [weight for weight in model.parameters() if hasattr(weight, "device_mesh")]
    # The outermost module's own weights are kept in either case: it is needed again as the backward pass begins.
    groups = [group for part in parts[1:] for group in groups_of(part)]
    return {
        "processes": accelerator.num_processes,
        "type": accelerator.distributed_type.value,
        "mesh": list(weights[0].device_mesh.shape) if weights else None,
        "reshard_after_forward": any(group._reshard_after_forward for group in groups),
        "weights between steps": weights[0].to_local().device.type if weights else None,
        "recomputation": any(
            hasattr(part, "_checkpoint_wrapped_module") or checkpoint.state(part) is not None for part in parts
        ),
    }


def steer_micro_batch(plan: dict[str, Any], note: Call, guard: Call, training_args: Any) -> None:
    """Split the Trainer's batch as the plan does, where that leaves the batch of a step what the script has it."""
    kind = training_args.TrainingArguments
    finish = kind.__post_init__
    planned = {"per_device_train_batch_size": plan["micro_batch"], "gradient_accumulation_steps": plan["accumulation"]}

    @guard
    def split_batch(self: Any) -> None:
        script = {name: getattr(self, name) for name in planned}
        if script == planned:
            return
        same = _product(script) == _product(planned)
        told: dict[str, dict[str, Any]] = {"given": {}, "overridden": {}, "kept": {}}
        for name, value in planned.items():
            if same and script[name] != value:
                setattr(self, name, value)
                told["given"][f"TrainingArguments({name})"] = value
                told["overridden"][f"TrainingArguments({name})"] = script[name]
            elif not same:
                told["kept"][f"TrainingArguments({name})"] = script[name]
        note("ddp", **told)

    @functools.wraps(finish)
    def post_init(self: Any) -> None:
        split_batch(self)
        finish(self)

    kind.__post_init__ = post_init


def _product(sizes: dict[str, Any]) -> int:
    product = 1
    for size in sizes.values():
        product *= size
    return product

"""Scripts that shard their model themselves: the plan's settings go in where their calls leave them open.

Whoever shards, what is sharded is watched here.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

from advisor.executor.in_process import sharded

Settled = tuple[dict[str, Any], dict[str, Any]]  # given and kept


def steer_fully_shard(plan: dict[str, Any], note: Callable[..., None], fsdp: Any) -> None:
    """Give each call of `fully_shard` what the plan says and the script does not."""
    original = fsdp.fully_shard
    signature = inspect.signature(original)
    meshes: dict[str, Any] = {}

    @functools.wraps(original)
    def fully_shard(*args: Any, **kwargs: Any) -> Any:
        if os.environ.get("ACCELERATE_USE_FSDP") == "true":
            return original(*args, **kwargs)  # accelerate has the plan from its own settings
        try:
            call = signature.bind(*args, **kwargs)
        except TypeError:
            return original(*args, **kwargs)
        given, kept = settle_fully_shard(call.arguments, plan, meshes)
        note("ddp", given={name: str(value) for name, value in given.items()}, overridden={}, kept=kept)
        return original(*call.args, **call.kwargs)

    fully_shard.as_torch_has_it = original  # type: ignore[attr-defined]
    fsdp.fully_shard = fully_shard


def settle_fully_shard(arguments: dict[str, Any], plan: dict[str, Any], meshes: dict[str, Any]) -> Settled:
    """Add the plan's settings to those of a call."""
    wanted = sharded.policies(plan)
    if not plan["reshard_after_forward"]:
        wanted["reshard_after_forward"] = False  # where the plan says True, torch's default is that and better
    if plan["strategy"] == "hsdp" and arguments.get("mesh") is None:
        if not meshes:
            import torch.distributed as dist

            first = arguments["module"][0] if isinstance(arguments["module"], list | tuple) else arguments["module"]
            meshes["hsdp"] = sharded.mesh(plan, sharded.device_type(first), dist.group.WORLD)
        wanted["mesh"] = meshes["hsdp"]
    given = {name: value for name, value in wanted.items() if arguments.get(name) is None}
    kept = {name: str(arguments[name]) for name in wanted if arguments.get(name) not in (None, wanted[name])}
    if "mesh" in arguments and plan["strategy"] == "hsdp" and arguments["mesh"] is not None:
        kept["mesh"] = str(arguments["mesh"])
    arguments.update(given)
    return given, kept


def steer_fsdp1(plan: dict[str, Any], note: Callable[..., None], fsdp: Any) -> None:
    """Give FullyShardedDataParallel what the plan says and the script does not."""
    kind = fsdp.FullyShardedDataParallel
    build = kind.__init__
    signature = inspect.signature(build)
    seen: list[dict[str, Any]] = []

    @functools.wraps(build)
    def init(*args: Any, **kwargs: Any) -> None:
        try:
            call = signature.bind(*args, **kwargs)
        except TypeError:
            build(*args, **kwargs)
            return
        wanted = fsdp1_settings(plan)
        given = {name: value for name, value in wanted.items() if call.arguments.get(name) is None}
        kept = {name: str(call.arguments[name]) for name in wanted if name not in given}
        call.arguments.update(given)
        told = {"given": {name: str(value) for name, value in given.items()}, "overridden": {}, "kept": kept}
        if told not in seen:  # it wraps each block by a call of its own
            seen.append(told)
            note("ddp", **told)
        build(*call.args, **call.kwargs)

    kind.__init__ = init


def fsdp1_settings(plan: dict[str, Any]) -> dict[str, Any]:
    """Translate a plan without copies: FSDP1's hybrid sharding can't be given a shard size after the fact."""
    import torch
    from torch.distributed.fsdp import CPUOffload, MixedPrecision, ShardingStrategy

    name = "FULL_SHARD" if plan["reshard_after_forward"] else "SHARD_GRAD_OP"
    wanted: dict[str, Any] = {"sharding_strategy": ShardingStrategy[name]}
    if plan["precision"] == "bf16-params":
        wire = torch.bfloat16 if plan["gradient_dtype"] == "bf16" else torch.float32
        wanted["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=wire)
    if plan["cpu_offload"]:
        wanted["cpu_offload"] = CPUOffload(offload_params=True)
    return wanted


def watching_acts(watch: Callable[[Any], Any]) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Name the modules of torch that shard, and how each is made to tell of what it has sharded."""
    yield "torch.distributed.fsdp._fully_shard._fully_shard", functools.partial(watch_fully_shard, watch)
    yield "torch.distributed.fsdp.fully_sharded_data_parallel", functools.partial(watch_fsdp1, watch)


def watch_fully_shard(watch: Callable[[Any], Any], fsdp: Any) -> None:
    """Watch each module that is sharded; the one that holds all others comes last."""
    original = fsdp.fully_shard

    @functools.wraps(original)
    def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(module, *args, **kwargs)
        for one in module if isinstance(module, list | tuple) else [module]:
            watch(one)
        return result

    fsdp.fully_shard = fully_shard


def watch_fsdp1(watch: Callable[[Any], Any], fsdp: Any) -> None:
    kind = fsdp.FullyShardedDataParallel
    build = kind.__init__

    @functools.wraps(build)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        watch(self)

    kind.__init__ = init

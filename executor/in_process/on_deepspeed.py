"""Scripts on DeepSpeed: what their JSON leaves open `initialize` gets from the plan; the engine says what it became."""

import contextlib
import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from advisor.executor.in_process.blocks import recompute
from advisor.executor.in_process.deepspeed_json import config_of, flat, merge, read_config, stage_of
from advisor.executor.in_process.meet import say

Call = Callable[..., Any]

WHOLE_STATE = (
    "at ZeRO stage 3, which the plan brought in, state_dict() has no weights: call engine.save_checkpoint() or "
    'engine.save_16bit_model() on all ranks, or write "zero_optimization": {"stage": 2} in the script\'s config'
)


def steer(  # noqa: PLR0917 - in the order of hooks.py
    plan: dict[str, Any], recorder: Any, guard: Call, observe: Call, watch: Call, deepspeed: Any
) -> None:
    """Complete the config of each engine that the script builds, and count the steps of the first."""
    start = deepspeed.initialize
    signature = inspect.signature(start)
    settle_config, follow_engine, recompute_blocks = guard(settle), guard(follow), guard(recompute)
    engines: list[int] = []

    @functools.wraps(start)
    def initialize(*args: Any, **kwargs: Any) -> Any:
        try:
            call = signature.bind(*args, **kwargs)
        except TypeError:
            return start(*args, **kwargs)
        if is_pipeline(call.arguments.get("model"), deepspeed):
            say("a PipelineModule is split into stages by the script: the plan is left out")
            return start(*args, **kwargs)
        settled = settle_config(call.arguments, plan)
        if settled is None:  # DeepSpeed says what is wrong with the config
            return start(*args, **kwargs)
        config, given, kept = settled
        recorder.note("ddp", given=given, overridden={}, kept=kept)
        engines.append(1)
        guard(write)(recorder.folder.parent, config, len(engines))
        if plan["activation_checkpointing"] != "none":
            recompute_blocks(call.arguments["model"], plan["activation_checkpointing"])
        call.arguments.pop("config_params", None)
        call.arguments["config"] = config
        with config_aside(call.arguments.get("args")):
            result = start(*call.args, **call.kwargs)
        follow_engine(result[0], plan, given, recorder, getattr(deepspeed, "__version__", ""))
        if len(engines) == 1:
            guard(count_steps)(result[0], recorder, guard)
            observe(result[0].module)
            watch(result[0])
        return result

    deepspeed.initialize = initialize


def is_pipeline(model: Any, deepspeed: Any) -> bool:
    kind = getattr(deepspeed, "PipelineModule", None)
    return kind is not None and isinstance(model, kind)


def settle(arguments: dict[str, Any], plan: dict[str, Any]) -> Any:
    """Find the config where DeepSpeed would, and complete it; None where there is none, or more than one."""
    ways = [arguments.get("config"), arguments.get("config_params")]
    configs = [config for config in ways if config is not None][:1]
    args = arguments.get("args")
    configs += [one for name in ("deepspeed_config", "deepscale_config") if (one := getattr(args, name, None))]
    if len(configs) != 1:
        return None
    config, given, kept = merge(read_config(configs[0]), plan, plan["launcher"]["nproc_per_node"])
    if "strategy" in kept:
        # A script's code and checkpoints are written for its stage: at 3, weights are empty outside of the passes.
        say(
            f"the script's DeepSpeed config says {kept['strategy']}, which stays; the plan, and so its prediction, has "
            f'stage {stage_of(plan)}: leave "stage" out of the config for that'
        )
    return config, given, kept


@contextlib.contextmanager
def config_aside(args: Any) -> Iterator[None]:
    """Hide the path in the script's arguments, beside which DeepSpeed takes no other config."""
    names = ("deepspeed_config", "deepscale_config")
    aside = {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
    for name in aside:
        setattr(args, name, None)
    try:
        yield
    finally:
        for name, value in aside.items():
            setattr(args, name, value)


def write(folder: Path, config: dict[str, Any], number: int) -> None:
    """Leave what DeepSpeed was given in the run's folder, for the user to read: rank 0 does, whole or not at all."""
    if os.environ.get("RANK", "0") != "0":
        return
    path = folder / ("deepspeed.json" if number == 1 else f"deepspeed-{number}.json")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(config, indent=2, default=repr) + "\n")
    temporary.replace(path)


def follow(engine: Any, plan: dict[str, Any], given: dict[str, Any], recorder: Any, version: str) -> None:
    """Put right what the plan's config means for the script's code, and write down what the engine says it became."""
    if given.get("bf16.enabled"):
        take_and_return_fp32(engine.module)
    if given.get("zero_optimization.stage") == 3:
        refuse_empty_states(engine.module)
    wanted, became = wanted_of(plan), became_of(engine)
    name = f"deepspeed {version}".strip()
    recorder.note("library", name=name, wanted=wanted, became={what: became[what] for what in wanted})


def wanted_of(plan: dict[str, Any]) -> dict[str, Any]:
    """Say what the plan asks for, whatever the script's own config says."""
    settings = flat(config_of(plan))
    wanted: dict[str, Any] = {"processes": plan["launcher"]["nproc_per_node"]}
    if plan["strategy"] != "single":
        wanted["ZeRO stage"] = stage_of(plan)
    if plan["micro_batch"] is not None:
        wanted |= {"micro batch": plan["micro_batch"], "accumulation": plan["accumulation"]}
    if "bf16.enabled" in settings:
        wanted["weights"] = "bf16"
    if "communication_data_type" in settings:
        wanted["gradients sent as"] = settings["communication_data_type"]
    if plan["cpu_offload"]:
        wanted["optimizer between steps"] = "cpu"
        if stage_of(plan) == 3:
            wanted["weights between steps"] = "cpu"
    if plan["activation_checkpointing"] != "none":
        wanted["recomputation"] = True
    return wanted


def became_of(engine: Any) -> dict[str, Any]:
    """Ask the engine, its optimizer and its weights."""
    from torch.distributed._composable.checkpoint_activation import checkpoint

    weights = list(engine.module.parameters())
    parts = [getattr(weight, "ds_tensor", weight) for weight in weights]  # a rank's own, at stage 3
    optimizer = engine.optimizer
    masters = getattr(optimizer, "fp32_partitioned_groups_flat", None)  # stage 3
    masters = masters or getattr(optimizer, "single_partition_of_fp32_groups", None) or weights  # 1 and 2, 0
    return {
        "processes": engine.dp_world_size,
        "ZeRO stage": int(engine.zero_optimization_stage()),
        "micro batch": engine.train_micro_batch_size_per_gpu(),
        "accumulation": engine.gradient_accumulation_steps(),
        "weights": short(weights[0].dtype),
        "gradients sent as": short(engine.communication_data_type),
        "optimizer between steps": masters[0].device.type,
        "weights between steps": parts[0].device.type,
        "recomputation": any(checkpoint.state(part) is not None for part in engine.module.modules()),
    }


def short(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    return {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(name, name)


def take_and_return_fp32(module: Any) -> None:
    """Let a script written for fp32 weights hand in fp32 tensors and get such back, as FSDP's mixed precision does."""
    import torch
    from torch.utils._pytree import tree_map_only

    def cast(dtype: Any, values: Any) -> Any:
        return tree_map_only(torch.Tensor, lambda one: one.to(dtype) if one.is_floating_point() else one, values)

    module.register_forward_pre_hook(
        lambda _, args, kwargs: (cast(torch.bfloat16, args), cast(torch.bfloat16, kwargs)), with_kwargs=True
    )
    module.register_forward_hook(lambda _, __, output: cast(torch.float32, output))


def refuse_empty_states(module: Any) -> None:
    """Raise an error where the script itself takes a state that would hold no weights; DeepSpeed knows how to."""

    def look(_: Any, *__: Any) -> None:
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] == "torch":
            frame = frame.f_back
        theirs = frame is not None and frame.f_globals.get("__name__", "").split(".")[0] != "deepspeed"
        if theirs and any(weight.numel() == 0 for weight in module.parameters()):
            raise RuntimeError(WHOLE_STATE)

    module.register_state_dict_pre_hook(look)


def count_steps(engine: Any, recorder: Any, guard: Call) -> None:
    """Count the steps that the engine makes: ZeRO calls the optimizer once for each group of parameters."""
    step, step_ended = engine.step, guard(recorder.step_ended)
    recorder.count_only(engine)

    @functools.wraps(step)
    def counted(*args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        result = step(*args, **kwargs)
        if engine.global_steps != before:
            step_ended(engine)
        return result

    engine.step = counted

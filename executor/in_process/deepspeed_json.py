"""DeepSpeed's JSON of a plan, and its way into the script's: https://www.deepspeed.ai/docs/config-json/."""

import base64
import copy
import importlib
import json
import os
from pathlib import Path
from typing import Any

Config = dict[str, Any]

ZERO = "zero_optimization"
TOTAL, MICRO, ACCUMULATION = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
# What a plan may set, by its path in the JSON, and the plan's own name for it.
NAMES = {
    f"{ZERO}.stage": "strategy",
    f"{ZERO}.reduce_bucket_size": "bucket_cap_mb",
    f"{ZERO}.offload_optimizer": "cpu_offload",
    f"{ZERO}.offload_param": "cpu_offload",
    "zero_force_ds_cpu_optimizer": "cpu_offload",
    "bf16.enabled": "precision",
    "communication_data_type": "gradient_dtype",
    MICRO: "micro_batch",
    ACCUMULATION: "accumulation",
}
OTHER_PRECISIONS = ("bfloat16", "fp16", "torch_autocast", "amp")  # beside "bf16"
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def config_of(plan: dict[str, Any], stage: int | None = None) -> Config:
    """Translate a plan, at its own ZeRO stage or at one that the script decides; the batch is left to `batch_of`.

    Stage 2 is the nearest to FSDP that keeps the weights after forward, stage 3 to FSDP that frees them. Recomputation
    of activations can't be turned on here: its section only says how `deepspeed.checkpointing` works.
    """
    if stage is None:
        stage = stage_of(plan)
    zero: Config = {"stage": stage}
    config: Config = {ZERO: zero}
    wire = plan["gradient_dtype"]
    if plan["bucket_cap_mb"] is not None and stage:  # without ZeRO, DeepSpeed's buckets are of a fixed size
        zero["reduce_bucket_size"] = max(1, int(plan["bucket_cap_mb"] * 2**20 / BYTES[wire]))  # in elements
    if plan["cpu_offload"] and stage:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        # True refuses the script's own optimizer, since DeepSpeed has a faster one for states in host memory.
        config["zero_force_ds_cpu_optimizer"] = False
        if stage == 3:
            zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    if plan["precision"] == "bf16-params":
        config["bf16"] = {"enabled": True}
    if plan["precision"] == "bf16-params" or wire != "fp32":  # with 16-bit weights DeepSpeed would send these
        config["communication_data_type"] = wire
    return config


def stage_of(plan: dict[str, Any]) -> int:
    return 0 if plan["strategy"] != "fsdp" else 3 if plan["reshard_after_forward"] else 2


def batch_of(script: Config, plan: dict[str, Any], ranks: int) -> Config:
    """Return the plan's batch where the script writes "auto" or nothing at all, and the batch of a step stays.

    A missing accumulation beside a size is 1, not open: the script's loop and loader are written for it.
    """
    said = {name: script[name] for name in (TOTAL, MICRO, ACCUMULATION) if script.get(name) not in (None, "auto")}
    planned = {MICRO: plan["micro_batch"], ACCUMULATION: plan["accumulation"]}
    nothing = TOTAL not in said and MICRO not in said
    given = {
        name: value
        for name, value in planned.items()
        if name not in said and (script.get(name) == "auto" or (nothing and script.get(name) is None))
    }
    if plan["micro_batch"] is None or not given:
        return {}
    whole = said | given
    if TOTAL in said:
        unchanged = ACCUMULATION in whole and whole.get(MICRO, 0) * whole[ACCUMULATION] * ranks == said[TOTAL]
    else:
        unchanged = all(planned[name] == value for name, value in said.items())
    return given if unchanged else {}


def merge(script: Config, plan: dict[str, Any], ranks: int) -> tuple[Config, Config, Config]:
    """Return the script's config completed, what was given by path, and by the plan's names what the script decides."""
    merged = copy.deepcopy(script)
    stage = stage_said(script)
    planned = flat(config_of(plan, stage))
    if plan["strategy"] == "single" and stage is None and _at(script, f"{ZERO}.stage") is None:
        del planned[f"{ZERO}.stage"]
    batch = batch_of(script, plan, ranks)
    given: Config = {}
    kept: Config = {}
    if stage is not None and plan["strategy"] != "single" and stage != stage_of(plan):
        kept["strategy"] = f"ZeRO stage {stage}"
    other = next((name for name in OTHER_PRECISIONS if (_at(script, f"{name}.enabled") or "auto") != "auto"), None)
    for path, name in NAMES.items():
        value, theirs = (planned | batch).get(path), _at(script, path)
        if path == f"{ZERO}.offload_optimizer" and theirs is None and _at(script, f"{ZERO}.cpu_offload") is not None:
            theirs = {"cpu_offload": _at(script, f"{ZERO}.cpu_offload")}  # as it was called before
        if name == "precision" and value is not None and other is not None:
            kept[name] = other
        elif theirs in (None, "auto"):
            if _put(merged, path, value) and value is not None:
                given[path] = value
        elif value is not None and theirs != value:
            kept.setdefault(name, theirs)
    if merged.get(TOTAL) == "auto":  # DeepSpeed makes it of the two others
        del merged[TOTAL]
    for path in (MICRO, ACCUMULATION):
        theirs, own = _at(script, path), plan[NAMES[path]]
        if own is not None and path not in given and theirs not in (None, "auto", own):
            kept[NAMES[path]] = theirs
    if _at(script, TOTAL) not in (None, "auto", plan["global_batch"]) and plan["global_batch"] is not None:
        kept["global_batch"] = script[TOTAL]
    return merged, given, kept


def stage_said(script: Config) -> int | None:
    """Return the ZeRO stage that a script's config decides, if it does."""
    zero = script.get(ZERO)
    if isinstance(zero, bool):  # as it was written before there were stages
        return int(zero)
    stage = _at(script, f"{ZERO}.stage")
    return None if stage in (None, "auto") else int(stage)


def flat(config: Config) -> Config:
    """Return the settings by their paths; the offload sections count as one setting each."""
    found: Config = {}
    for name, value in config.items():
        if name in (ZERO, "bf16"):
            found |= {f"{name}.{inner}": one for inner, one in value.items()}
        else:
            found[name] = value
    return found


def read_config(config: Any) -> Config:
    """Read a config as DeepSpeed does: a dictionary, a file of JSON or Hjson, or such text in base64."""
    if isinstance(config, dict):
        return config
    there = os.path.exists(config)  # noqa: PTH110 - Path.exists() raises where base64 is too long for a name
    text = Path(config).read_text() if there else base64.urlsafe_b64decode(config).decode()
    try:
        return dict(json.loads(text))
    except ValueError:
        return dict(importlib.import_module("hjson").loads(text))  # comes with DeepSpeed


def _at(config: Config, path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _put(config: Config, path: str, value: Any) -> bool:
    """Set a value, unless its section is `true` or `false` in the script; return whether it was done.

    None takes out an "auto" that the plan has nothing for, so that DeepSpeed's default holds.
    """
    *sections, name = path.split(".")
    for section in sections:
        inner = config.get(section)
        if not isinstance(inner, dict):
            if value is None or inner is not None:
                return False
            inner = config[section] = {}
        config = inner
    if value is None:
        config.pop(name, None)
    else:
        config[name] = value
    return True

"""What a library that distributes the model reads from the environment: the plan in its own words."""

from advisor.executor.script import Kind
from advisor.rules.plan import Plan


def library_environment(plan: Plan, kind: Kind) -> dict[str, str]:
    """Return the variables by which accelerate, and so Transformers' Trainer and TRL, follow the plan.

    They are those that `accelerate launch` would set (accelerate/utils/launch.py). What a script passes to its
    Accelerator or TrainingArguments itself, accelerate takes before them.
    """
    if kind not in ("accelerate", "trainer"):
        return {}
    variables = {"ACCELERATE_USE_CPU": "true"} if plan.launcher.device == "cpu" else {}
    if plan.strategy not in ("fsdp", "hsdp"):
        return variables
    variables |= {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_RESHARD_AFTER_FORWARD": _flag(plan.reshard_after_forward),
        "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",  # the script's checkpoints stay whole
        "FSDP_OFFLOAD_PARAMS": _flag(plan.cpu_offload),
        # accelerate knows all blocks or none: on_accelerate.py brings every second one in.
        "FSDP_ACTIVATION_CHECKPOINTING": _flag(plan.activation_checkpointing == "full"),
    }
    if plan.strategy == "hsdp":
        variables |= {
            "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
            "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": str(plan.ranks // plan.shard_size),
            "PARALLELISM_CONFIG_DP_SHARD_SIZE": str(plan.shard_size),
        }
    return variables


def _flag(value: bool) -> str:
    return str(value).lower()

"""A plan's name, short enough for a table."""

from advisor.rules.plan import Plan


def strategy(plan: Plan) -> str:
    """Name a strategy and what sets it apart, short enough for a table: `FSDP, recompute, offload`."""
    name = {
        "single": "one process",
        "ddp": "DDP",
        "fsdp": "FSDP",
        "hsdp": f"HSDP {plan.shard_size}x{plan.ranks // plan.shard_size}",
    }[plan.strategy]
    sharded = plan.strategy in ("fsdp", "hsdp")
    marks = [
        "no reshard" if sharded and not plan.reshard_after_forward else "",
        "late reduce" if reduced_late(plan) else "",
        {"none": "", "selective": "selective recompute", "full": "recompute"}[plan.activation_checkpointing],
        "CPU offload" if plan.cpu_offload else "",
        f"{plan.gradient_dtype} gradients" if plan.gradient_dtype != "fp32" else "",
        f"{plan.bucket_cap_mb:g} MiB buckets" if plan.bucket_cap_mb is not None else "",
    ]
    return ", ".join([name, *(mark for mark in marks if mark)])


def reduced_late(plan: Plan) -> bool:
    """Say whether a sharded plan keeps whole gradients over its micro-batches and reduces them in the last alone."""
    return plan.strategy in ("fsdp", "hsdp") and plan.accumulation > 1 and not plan.sync_each_micro_batch

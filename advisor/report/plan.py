"""A plan in words."""

from collections.abc import Sequence

from advisor.rules.format import UNKNOWN, count, ids, plural
from advisor.rules.plan import Plan
from advisor.rules.plan_name import reduced_late

SCRIPT = "left to the script"
PRECISION = {
    "bf16-autocast": "bf16 autocast over fp32 parameters",
    "bf16-params": "bf16 parameters for compute, fp32 shards",
    "fp16-autocast": "fp16 autocast over fp32 parameters, with loss scaling",
    "fp32": "fp32",
}
CHECKPOINTING = {
    "none": "none: all activations are kept",
    "selective": "selective: every second block is computed again in backward",
    "full": "full: each block is computed again in backward",
}


def devices(plan: Plan) -> str:
    """Name what a plan runs on, short enough for a table: `GPU0-7`, `1024 x 8`, `2 CPU`."""
    if plan.launcher.device == "cpu":
        return f"{plan.ranks} CPU"
    return f"{plan.nodes} x {len(plan.gpus)}" if plan.nodes > 1 else ids(plan.gpus)


def devices_in_words(plan: Plan, gpus_there: int = 0) -> str:
    """Name what a plan runs on and, of the GPUs that are there, how many it leaves idle."""
    if plan.launcher.device == "cpu":
        return f"{plural(plan.ranks, 'CPU process')} with gloo"
    idle = gpus_there - len(plan.gpus)
    text = f"{ids(plan.gpus)}{f' of {gpus_there}; {idle} stay idle' if idle > 0 else ''}"
    return f"{text}, on each of {plan.nodes} hosts: {plural(plan.ranks, 'rank')}" if plan.nodes > 1 else text


def strategy_in_words(plan: Plan) -> str:
    """Say what each rank holds and sends."""
    sync = " on the last micro-batch (no_sync on the others)" if plan.accumulation > 1 else ""
    resharding = (
        "freed after forward and gathered again in backward"
        if plan.reshard_after_forward
        else "kept from forward to backward (reshard_after_forward=False)"
    )
    sharded = "sharded from host memory" if plan.shard_from == "cpu" else "sharded"
    copies, ranks = plan.ranks // plan.shard_size, plural(plan.shard_size, "rank")
    return {
        "single": "one process, nothing to communicate",
        "ddp": f"DDP: a full copy on each rank, gradients averaged{sync}",
        "fsdp": f"FSDP: parameters, gradients and optimizer {sharded} over {ranks}; weights are {resharding}",
        "hsdp": f"hybrid FSDP: {sharded} within {copies} groups of {ranks}; weights are {resharding}",
    }[plan.strategy]


def batch(plan: Plan) -> str:
    """Give micro-batch x accumulation, short enough for a table."""
    return f"{plan.micro_batch or UNKNOWN}x{plan.accumulation}"


def batch_in_words(plan: Plan, seq: int) -> str:
    """Show how the global batch comes about."""
    if plan.micro_batch is None:
        return SCRIPT
    samples = plan.micro_batch * plan.accumulation * plan.ranks
    product = f"{plan.micro_batch} per rank x {plan.accumulation} accumulated x {plural(plan.ranks, 'rank')}"
    tokens = f", {count(samples * seq)} tokens" if seq > 1 else ""  # 1: samples that are no sequences
    return f"{product} = {samples} samples a step{tokens}"


def gradients_in_words(plan: Plan) -> str:
    """Say how gradients travel."""
    if plan.strategy != "ddp":
        late = "; kept whole over the micro-batches, reduced in the last" if reduced_late(plan) else ""
        return f"reduced in {plan.gradient_dtype}{late}"
    size = "DDP's own buckets (25 MiB, the first 1 MiB)"
    if plan.bucket_cap_mb is not None:
        size = f"buckets of {plan.bucket_cap_mb:g} MiB"
    flags = ["gradient_as_bucket_view" * plan.gradient_as_bucket_view, "static_graph" * plan.static_graph]
    return ", ".join([f"reduced in {plan.gradient_dtype}", size, *(flag for flag in flags if flag)])


def launch_in_words(plan: Plan) -> str:
    """Say what torchrun is told besides."""
    launcher = plan.launcher
    parts: Sequence[str | None] = [
        plural(launcher.nproc_per_node, "rank") + " per host",
        plural(launcher.threads_per_rank, "thread") + " per rank" if launcher.threads_per_rank else None,
        "each bound to its GPU's NUMA node" if launcher.numa_binding else None,
    ]
    return ", ".join(part for part in parts if part)

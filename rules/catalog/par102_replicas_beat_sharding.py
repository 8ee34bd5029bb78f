"""DDP is faster than full sharding here, although the sharded model would fit as well.

## What it finds
A plan for DDP where the best sharded plan (FSDP or hybrid) on the same GPUs fits and takes at least a quarter longer.

## Why it matters
Sharding pays for memory with traffic: FSDP gathers all weights in the forward and in the backward pass of each
micro-batch, DDP reduces the gradients once per optimizer step. With small micro-batches, or on slow links, that
decides: OLMo-1B on 4 GPUs ran at 8,034 tokens/s per GPU with DDP and at 1,747 with FSDP.

## What to do
Keep DDP as long as the model fits. If the memory is needed for something else, type `--only fsdp`.

## Source
https://github.com/allenai/OLMo/issues/762; docs/models.md for the timelines of both
"""

from collections.abc import Iterator

from advisor.rules.alternatives import ADAPTERS, SLOWER, fastest, rivals
from advisor.rules.format import memory, seconds
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("PAR102", "replicas-beat-sharding")
def check(case: Case) -> Iterator[Finding]:
    plan, predicted, job = case.plan, case.predicted, case.job
    if plan is None or predicted is None or job is None or plan.strategy != "ddp":
        return
    sharded = fastest(rivals(case, "fsdp", "hsdp"))
    if sharded is None or job.trainable_params < ADAPTERS * job.params:
        return
    other = sharded.predicted
    times = other.step_seconds / predicted.step_seconds
    if times < SLOWER:
        return
    traffic, theirs = predicted.communication_seconds, other.communication_seconds
    repeats = sharded.plan.accumulation
    each = f", in each of {repeats} micro-batches anew," if repeats > 1 else ""
    yield Finding(
        code="PAR102",
        name="replicas-beat-sharding",
        severity="info",
        message=(
            f"DDP takes {seconds(predicted.step_seconds)} per step, the best {sharded.plan.strategy.upper()} plan "
            f"{seconds(other.step_seconds)} ({times:.1f}x): it gathers the weights{each} and has {seconds(theirs)} of "
            f"traffic per step, DDP {seconds(traffic)}"
        ),
        facts={
            "step_seconds": predicted.step_seconds,
            "sharded_step_seconds": other.step_seconds,
            "communication_seconds": traffic,
            "sharded_communication_seconds": theirs,
            "memory": predicted.memory.total,
            "sharded_memory": other.memory.total,
        },
        remedy=(
            f"none needed; --only fsdp,hsdp shards all the same: {memory(other.memory.total)} per rank "
            f"instead of {memory(predicted.memory.total)}"
        ),
    )

"""The model has to be sharded: whole copies of its states do not fit.

## What it finds
A plan for full sharding where not even the smallest DDP plan on the same GPUs fits.

## Why it matters
DDP keeps weights, gradients and optimizer states on each GPU, 16 bytes per parameter with AdamW, and buckets for the
gradients. Sharding divides these by the ranks that share a copy, at the price of gathering the weights in each
micro-batch.

## What to do
Nothing: the plan shards. With an 8-bit optimizer or adapters (LoRA) whole copies may fit, which DDP then needs.

## Source
ZeRO, https://arxiv.org/abs/1910.02054
"""

from collections.abc import Iterator

from advisor.rules.alternatives import rivals, smallest
from advisor.rules.format import count, memory
from advisor.rules.memory import states
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("PAR103", "replicas-do-not-fit")
def check(case: Case) -> Iterator[Finding]:
    plan, predicted, job = case.plan, case.predicted, case.job
    if plan is None or predicted is None or job is None or plan.strategy != "fsdp":
        return
    replicated = smallest(rivals(case, "ddp"))
    if replicated is None or any(c.predicted.memory.fits for c in rivals(case, "ddp")):
        return
    needed, room = replicated.predicted.memory.total, predicted.memory.available
    whole = states(job).total
    yield Finding(
        code="PAR103",
        name="replicas-do-not-fit",
        severity="info",
        message=(
            f"DDP needs at least {memory(needed)} per rank, {memory(whole)} of it states of {count(job.params)} "
            f"parameters, and {memory(room)} are available; sharded over {plan.shard_size} ranks it is "
            f"{memory(predicted.memory.total)}"
        ),
        facts={
            "replicated": needed,
            "states": int(whole),
            "sharded": predicted.memory.total,
            "available": room,
            "shard_size": plan.shard_size,
        },
        remedy="none needed; --optimizer adamw-8bit or --lora-rank 16 make copies smaller",
    )

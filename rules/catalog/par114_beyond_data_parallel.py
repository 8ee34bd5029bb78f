"""One block and one sample fill a GPU, or the traffic of hundreds does not hide: data parallelism is not enough.

## What it finds
Either nothing fits, and what sharding cannot divide (activations of one sample, logits, gathered blocks, buffers) is
alone more than a GPU has: an error. Or a sharded plan on 256 GPUs and more waits for communication for more than 30 %
of a step.

## Why it matters
FSDP divides weights, gradients and optimizer states. Activations of one sample, and the block that is computed, stay
whole on each GPU whatever the number of GPUs; only splitting the matrices (tensor parallelism), the sequence (context
parallelism) or the layers (pipeline) makes them smaller. And each further GPU makes gathers longer and its share of the
batch smaller.

## What to do
Shorten the sequence, or use tensor parallelism inside a host and FSDP across hosts, as torchtitan and Megatron do.
The advisor plans data parallelism only.

## Source
https://arxiv.org/abs/2205.05198 (tensor and sequence parallelism); https://github.com/pytorch/torchtitan
"""

from collections.abc import Iterator

from advisor.rules.alternatives import exposed_share
from advisor.rules.format import memory, percent, seconds
from advisor.rules.plan import Finding, Memory, Plan
from advisor.rules.rule import Case, rule

MANY = 256  # GPUs
WAITING = 0.3  # of the step


@rule("PAR114", "beyond-data-parallel")
def check(case: Case) -> Iterator[Finding]:
    if case.job is None or not case.candidates:
        return
    if case.plan is None:
        yield from _too_large(case)
    elif case.predicted and _is_large(case.plan) and exposed_share(case.predicted) > WAITING:
        waiting = case.predicted.exposed_communication_seconds
        share = percent(exposed_share(case.predicted))
        yield Finding(
            code="PAR114",
            name="beyond-data-parallel",
            severity="info",
            message=(
                f"on {case.plan.ranks} GPUs {seconds(waiting)} of each step ({share}) wait for communication; "
                "data parallelism alone does not scale this job so far"
            ),
            facts={"ranks": case.plan.ranks, "exposed_seconds": waiting},
            remedy="split each layer over the GPUs of a host (tensor parallelism, torchtitan) and shard across hosts",
        )


def _is_large(plan: Plan) -> bool:
    return plan.ranks >= MANY and plan.strategy in ("fsdp", "hsdp")


def _too_large(case: Case) -> Iterator[Finding]:
    shards = max(candidate.plan.shard_size for candidate in case.candidates)
    least = min(
        (candidate.predicted.memory for candidate in case.candidates if candidate.plan.shard_size == shards),
        key=undivided,
    )
    rest = undivided(least)
    if rest <= least.available:
        return
    blocks = least.communication > least.activations + least.logits
    first = "call fully_shard on smaller modules" if blocks else "shorten --seq"
    yield Finding(
        code="PAR114",
        name="beyond-data-parallel",
        severity="error",
        message=(
            f"what sharding can't divide needs {memory(rest)} per GPU ({memory(least.activations + least.logits)} of "
            f"activations and logits of one sample, {memory(least.communication)} of gathered weights and buffers), "
            f"{memory(least.available)} are available: no number of such GPUs is enough"
        ),
        facts={
            "undivided": rest,
            "activations": least.activations + least.logits,
            "communication": least.communication,
            "available": least.available,
        },
        remedy=f"{first}, or split layers or the sequence over GPUs (tensor or context parallelism, torchtitan)",
    )


def undivided(needed: Memory) -> int:
    """Return the bytes that stay on each GPU however many share the states."""
    return needed.activations + needed.logits + needed.communication + needed.context

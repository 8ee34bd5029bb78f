"""More micro-batches do not hide this traffic: under sharding each of them gathers the weights again.

## What it finds
A sharded plan with several micro-batches per step that waits for communication for at least a quarter of it.

## Why it matters
Accumulation saves DDP all reductions but one. It saves FSDP at most the reduce-scatters: the weights are gathered in
the forward and the backward pass of every micro-batch, so traffic grows with their number. What hides a gather is the
work of one micro-batch, tokens per GPU, not their count.

## What to do
Give each micro-batch more tokens: recompute activations or take a leaner optimizer so that a larger one fits; or
shard over fewer GPUs. More accumulation or a larger global batch changes nothing.

## Source
https://github.com/facebookresearch/fairscale/issues/1041; https://github.com/allenai/OLMo/issues/762
"""

from collections.abc import Iterator

from advisor.rules.alternatives import exposed_share
from advisor.rules.format import percent, seconds
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

LEAST = 0.25  # of the step


@rule("PAR107", "each-micro-batch-gathers")
def check(case: Case) -> Iterator[Finding]:
    plan, predicted, job = case.plan, case.predicted, case.job
    if plan is None or predicted is None or job is None or plan.strategy not in ("fsdp", "hsdp"):
        return
    if plan.accumulation == 1 or plan.micro_batch is None or exposed_share(predicted) < LEAST or plan.cpu_offload:
        return
    waiting, tokens = predicted.exposed_communication_seconds, plan.micro_batch * job.seq
    moved = predicted.communication_seconds
    options = ["--only hsdp"] if plan.strategy == "fsdp" and plan.nodes > 1 else []
    options += ["--optimizer adamw-8bit"] if job.optimizer == "adamw" else []
    options += ["a fused or chunked loss"] if predicted.memory.logits > 0.1 * predicted.memory.total else []
    yield Finding(
        code="PAR107",
        name="each-micro-batch-gathers",
        severity="info",
        message=(
            f"each of {plan.accumulation} micro-batches gathers the weights again: {seconds(moved)} of traffic per "
            f"step, {seconds(waiting)} of it ({percent(exposed_share(predicted))} of the step) not hidden by the "
            f"{tokens} tokens of a micro-batch; more accumulation changes nothing"
        ),
        facts={
            "accumulation": plan.accumulation,
            "communication_seconds": moved,
            "exposed_seconds": waiting,
            "micro_batch_tokens": tokens,
        },
        remedy=f"make room for a larger micro-batch: {' or '.join(options) or 'recompute activations'}",
    )

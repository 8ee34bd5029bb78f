"""The whole model is larger than a GPU: it has to be sharded before it is moved there.

## What it finds
A sharded plan (FSDP, hybrid) whose whole model in fp32 is larger than what one GPU has.

## Why it matters
The plan counts the steady state, in which each rank holds its share. A script that calls `.cuda()` before it wraps the
model holds all of it at construction, and runs out of memory before the first step.

## What to do
Build the model on the meta device, shard it, make room for the shares and load the weights: from rank 0 by broadcast,
or from a sharded checkpoint. Where it fits in host memory, building it on the CPU and sharding it there works as well.

## Source
https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html;
https://github.com/meta-llama/llama-cookbook/issues/100 (7B on 24 GB GPUs, out of memory while wrapping)
"""

from collections.abc import Iterator

from advisor.rules.format import count, memory
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("MEM104", "whole-model-exceeds-a-gpu")
def check(case: Case) -> Iterator[Finding]:
    job, plan, predicted = case.job, case.plan, case.predicted
    if job is None or plan is None or predicted is None or plan.strategy not in ("fsdp", "hsdp") or job.quantize:
        return
    whole, available = 4 * job.params, predicted.memory.available
    if plan.launcher.device == "cpu" or whole <= available:
        return
    yield Finding(
        code="MEM104",
        name="whole-model-exceeds-a-gpu",
        severity="info",
        message=(
            f"the peak at construction: {count(job.params)} x 4 B = {memory(whole)} if the whole model is moved to a "
            f"GPU before it is sharded, {memory(available)} available"
        ),
        facts={"model": whole, "available": available},
        remedy=(
            'no .cuda() before fully_shard: build it under `with torch.device("meta"):`, shard it, then '
            'model.to_empty(device="cuda") and load the weights'
        ),
    )

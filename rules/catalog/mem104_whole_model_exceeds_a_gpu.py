"""The whole model is larger than a GPU: it has to be sharded before it is moved there.

## What it finds
A sharded plan (FSDP, hybrid) whose whole model in fp32 is larger than what one GPU has.

## Why it matters
The plan counts the steady state, in which each rank holds its share. A script that calls `.cuda()` before it wraps the
model holds all of it at construction, and runs out of memory before the first step.

## What to do
A script that calls `DistributedDataParallel` can stay as it is under `advisor apply`: the plan then has `shard_from`
"cpu", by which the model is held in host memory until that call and moves to the GPUs block by block. It needs a whole
copy there for each rank of the host; where the host is known to have no room for them, `shard_from` stays "gpu".

In any other script, and where host memory is short: build the model on the meta device, shard it, make room for the
shares and load the weights, from rank 0 by broadcast or from a sharded checkpoint.

## Source
https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html;
https://github.com/meta-llama/llama-cookbook/issues/100 (7B on 24 GB GPUs, out of memory while wrapping)
"""

from collections.abc import Iterator

from advisor.rules.format import count, memory, plural
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.shard_from import copies_bytes, exceeds_a_gpu, host_memory, shard_from, whole_bytes

BY_HAND = (
    'no .cuda() before fully_shard: build it under `with torch.device("meta"):`, shard it, then '
    'model.to_empty(device="cuda") and load the weights'
)


@rule("MEM104", "whole-model-exceeds-a-gpu")
def check(case: Case) -> Iterator[Finding]:
    job, plan, predicted = case.job, case.plan, case.predicted
    if job is None or plan is None or predicted is None or not exceeds_a_gpu(job, plan, case.machine):
        return
    whole, available = whole_bytes(job), predicted.memory.available
    copies, there = copies_bytes(job, plan, case.machine), host_memory(case.machine)
    home = shard_from(job, plan, case.machine)
    room = f"{plural(len(plan.gpus), 'rank')} x {memory(whole)} = {memory(copies)}"
    known = "how much is there is not known" if there is None else f"{memory(there)} there"
    does = "the plan shards it from host memory" if home == "cpu" else "host memory can't hold a copy for each rank"
    yield Finding(
        code="MEM104",
        name="whole-model-exceeds-a-gpu",
        severity="info",
        message=(
            f"the peak at construction: {count(job.params)} x 4 B = {memory(whole)} if the whole model is moved to a "
            f"GPU before it is sharded, {memory(available)} available; {does}: {room}, {known}"
        ),
        facts={
            "model": whole,
            "available": available,
            "host_needed": copies,
            "host_available": there,
            "shard_from": home,
        },
        remedy=(
            f"advisor apply does so where the script calls DistributedDataParallel; in any other script {BY_HAND}"
            if home == "cpu"
            else BY_HAND
        ),
    )

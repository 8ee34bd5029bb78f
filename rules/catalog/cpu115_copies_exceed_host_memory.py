"""Host memory can't hold one copy of the model for each rank.

## What it finds
A job whose weights, once for each rank of a host, need more than the memory that the host has: parameters x 2 bytes x
ranks; 4 bytes in fp32, and where the model has to wait there until it is sharded (MEM104).

## Why it matters
A script that builds the model or loads a checkpoint on the CPU does so in every rank at once. The kernel then ends a
rank without a word of Python: "Killed", or exit code -9.

## What to do
Build the model on the meta device and load sharded; or load with `mmap=True`, on rank 0 alone, or one rank after the
other.

## Source
https://docs.pytorch.org/docs/stable/distributed.checkpoint.html; https://github.com/meta-llama/llama-cookbook/issues/100
"""

from collections.abc import Iterator

from advisor.rules.format import count, memory
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.shard_from import copies_bytes, copy_width, host_memory


@rule("CPU115", "copies-exceed-host-memory")
def check(case: Case) -> Iterator[Finding]:
    job, plan, there = case.job, case.plan, host_memory(case.machine)
    if job is None or plan is None or there is None or plan.launcher.device == "cpu":
        return
    width, ranks = copy_width(job, plan, case.machine), len(plan.gpus)
    needed = copies_bytes(job, plan, case.machine)
    if ranks == 1 or needed <= there:
        return
    yield Finding(
        code="CPU115",
        name="copies-exceed-host-memory",
        severity="info",
        message=(
            f"{count(job.params)} parameters x {width} B x {ranks} ranks = {memory(needed)}; "
            f"the host has {memory(there)} for copies on the CPU"
        ),
        facts={"needed": needed, "available": there},
        remedy='torch.load(..., mmap=True), or build the model under torch.device("meta") and load shards',
    )

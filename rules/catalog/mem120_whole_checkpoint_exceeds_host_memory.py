"""A whole checkpoint of the sharded model does not fit in the host's memory.

## What it finds
A sharded plan whose weights and optimizer states together are larger than the host's memory, where that is known.

## Why it matters
A full state dict of FSDP gathers everything on rank 0, in host memory. Training fits, since each rank has its share;
then the first checkpoint ends the run. Where each rank gathers, it is needed once for each.

## What to do
Save shards: each rank writes its own part, and any number of ranks can load them again. `advisor apply` does
so with the checkpoints that it writes itself.

## Source
https://docs.pytorch.org/docs/stable/distributed.checkpoint.html, get_state_dict and StateDictOptions
"""

from collections.abc import Iterator

from advisor.rules.format import count, memory
from advisor.rules.memory import states
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("MEM120", "whole-checkpoint-exceeds-host-memory")
def check(case: Case) -> Iterator[Finding]:
    job, plan = case.job, case.plan
    host = case.machine.host.memory_available or case.machine.host.memory
    if job is None or plan is None or host is None or plan.shard_size == 1 or plan.launcher.device == "cpu":
        return
    held = states(job)
    saved = int(held.parameters + held.optimizer)
    if saved <= host:
        return
    yield Finding(
        code="MEM120",
        name="whole-checkpoint-exceeds-host-memory",
        severity="info",
        message=(
            f"a full state dict gathers weights ({memory(held.parameters)}) and optimizer states "
            f"({memory(held.optimizer)}) of {count(job.params)} parameters on one rank: {memory(saved)}, the host has "
            f"{memory(host)}"
        ),
        facts={"saved": saved, "host_memory": host},
        remedy="save shards with torch.distributed.checkpoint.save, without StateDictOptions(full_state_dict=True)",
    )

"""No plan fits: weights, gradients, optimizer states and buffers need more memory than the GPUs have.

## What it finds
A job of which not even the smallest plan (fully sharded, one sample, full checkpointing) fits on the machine.

## Why it matters
AdamW in mixed precision keeps 16 bytes per trained parameter: 4 for the fp32 weight, 4 for its gradient, 8 for two
moments. Sharding divides that by the number of GPUs and no further; activations and buffers come on top.

## What to do
The finding lists what was tried, each alone, with the memory it then needs: an 8-bit optimizer, states in host memory,
adapters (LoRA, QLoRA), a shorter sequence, more GPUs. Take the first that suits.

## Source
ZeRO, https://arxiv.org/abs/1910.02054; LoRA, https://arxiv.org/abs/2106.09685; QLoRA, https://arxiv.org/abs/2305.14314
"""

from collections.abc import Iterator

from advisor.rules.format import count, memory
from advisor.rules.memory import states
from advisor.rules.plan import Finding
from advisor.rules.remedies import Remedy, remedies
from advisor.rules.rule import Case, rule


@rule("MEM101", "states-exceed-memory")
def check(case: Case) -> Iterator[Finding]:
    job, candidates = case.job, case.candidates
    if job is None or case.plan is not None or not candidates:
        return
    least = min(candidates, key=lambda c: c.predicted.memory.total)
    needed = least.predicted.memory
    whole = states(job)
    per_parameter = whole.total / job.trainable_params
    shards = max(c.plan.shard_size for c in candidates)
    shared = f", {memory(states(job, shards).total)} on each of {shards} ranks fully sharded" if shards > 1 else ""
    priced = remedies(job, case.machine)
    yield Finding(
        code="MEM101",
        name="states-exceed-memory",
        severity="error",
        message=(
            f"{count(job.trainable_params)} trained parameters x {per_parameter:.3g} B = "
            f"{memory(whole.total)} of states{shared}; {memory(needed.available)} available per rank"
        ),
        facts={
            "states": int(whole.total),
            "states_per_rank": int(states(job, shards).total),
            "needed_per_rank": needed.total,
            "available_per_rank": needed.available,
            "what_would_fit": [_row(remedy) for remedy in priced],
        },
        remedy="; ".join(_words(remedy) for remedy in priced if remedy.fits is not False)
        or "no single change makes it fit",
    )


def _words(remedy: Remedy) -> str:
    option = f" ({remedy.option})" if remedy.option else ""
    note = f"; {remedy.note}" if remedy.note else ""
    return f"{remedy.change}{option}: {memory(remedy.needed)} per rank{note}"


def _row(remedy: Remedy) -> dict[str, object]:
    return {field: getattr(remedy, field) for field in remedy.__struct_fields__}

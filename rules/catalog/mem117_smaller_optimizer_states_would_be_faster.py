"""A faster plan is out of reach only because of AdamW's states.

## What it finds
A job with AdamW, and a plan that was rejected for its memory, would fit with 8-bit states, and takes at least 10 % less
time than the one chosen.

## Why it matters
AdamW keeps 8 bytes of moments per trained parameter, an 8-bit AdamW 2. Sharding over slow links, or offloading to the
host, costs time on every step; smaller states may save that.

## What to do
Ask again with `--optimizer adamw-8bit`. In the script: `torchao.optim.AdamW8bit`, which FSDP can shard, or
`bitsandbytes.optim.AdamW8bit` without sharding. It trains alike in published comparisons; compare the loss on your own.

## Source
https://arxiv.org/abs/2110.02861
"""

from collections.abc import Iterator

from advisor.rules.format import memory, seconds
from advisor.rules.memory import OPTIMIZER_BYTES
from advisor.rules.plan import Candidate, Finding
from advisor.rules.rule import Case, rule

FASTER = 0.9  # of the chosen plan's time per step


@rule("MEM117", "smaller-optimizer-states-would-be-faster")
def check(case: Case) -> Iterator[Finding]:
    job, plan, predicted = case.job, case.plan, case.predicted
    if job is None or plan is None or predicted is None or job.optimizer != "adamw" or plan.launcher.device == "cpu":
        return
    per_parameter = OPTIMIZER_BYTES["adamw"] - OPTIMIZER_BYTES["adamw-8bit"]

    def with_8_bit(candidate: Candidate) -> float:
        return candidate.predicted.memory.total - per_parameter * job.trainable_params / candidate.plan.shard_size

    faster = [
        candidate
        for candidate in case.candidates
        if not candidate.plan.cpu_offload
        and candidate.predicted.memory.total > candidate.predicted.memory.available
        and with_8_bit(candidate) <= candidate.predicted.memory.available
        and candidate.predicted.step_seconds <= FASTER * predicted.step_seconds
    ]
    if not faster:
        return
    best = min(faster, key=lambda candidate: candidate.predicted.step_seconds)
    needed = best.predicted.memory
    yield Finding(
        code="MEM117",
        name="smaller-optimizer-states-would-be-faster",
        severity="info",
        message=(
            f"with 8-bit AdamW {best.plan.strategy.upper()} would need {memory(with_8_bit(best))} instead of "
            f"{memory(needed.total)} and fit in {memory(needed.available)}: {seconds(best.predicted.step_seconds)} "
            f"instead of {seconds(predicted.step_seconds)} per step"
        ),
        facts={
            "needed": int(with_8_bit(best)),
            "available": needed.available,
            "step_seconds": best.predicted.step_seconds,
        },
        remedy="--optimizer adamw-8bit (torchao.optim.AdamW8bit), if the loss is the same",
    )

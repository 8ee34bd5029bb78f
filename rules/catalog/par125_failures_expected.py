"""So many GPUs fail now and then: how often to write a checkpoint.

## What it finds
A plan on 64 GPUs or more, with the time between failures to expect and the interval between checkpoints that loses
least.

## Why it matters
A run ends when one GPU, link or host fails. Llama 3's training on 16384 H100 was interrupted 419 times in 54 days: one
failure in about 50,000 GPU-hours. Without a restart the job waits for a person; after it, all since the last checkpoint
is lost. Young's interval sqrt(2 C M), with C seconds to write one and M between failures, balances the two.

## What to do
Write a checkpoint of each rank's shard at that interval (torch.distributed.checkpoint.async_save), load the newest at
start, and let torchrun start again by itself.

## Source
Llama 3, https://arxiv.org/abs/2407.21783, section 3.3.4; Young 1974, https://doi.org/10.1145/361147.361115; Daly 2006,
https://doi.org/10.1016/j.future.2004.11.016
"""

import math
from collections.abc import Iterator

from advisor.rules.format import bandwidth, memory, seconds
from advisor.rules.memory import states
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

MANY = 64  # GPUs: a failure a month
GPU_HOURS_PER_FAILURE = 16384 * 54 * 24 / 419  # 50,700: Llama 3's unexpected interruptions
STORAGE = 2e9  # bytes per second into shared storage; assumed


@rule("PAR125", "failures-expected")
def check(case: Case) -> Iterator[Finding]:
    plan, job = case.plan, case.job
    if plan is None or job is None or plan.ranks < MANY or plan.launcher.device == "cpu":
        return
    between = GPU_HOURS_PER_FAILURE * 3600 / plan.ranks
    held = states(job)
    size = held.parameters + held.optimizer
    writing = size / STORAGE
    interval = interval_seconds(writing, between)
    yield Finding(
        code="PAR125",
        name="failures-expected",
        severity="info",
        message=(
            f"{plan.ranks} GPUs fail about every {seconds(between)}; with {memory(size)} per checkpoint, "
            f"{seconds(writing)} at {bandwidth(STORAGE)} (assumed), one every {seconds(interval)} loses least"
        ),
        facts={
            "seconds_between_failures": between,
            "checkpoint_bytes": int(size),
            "checkpoint_seconds": writing,
            "interval_seconds": interval,
        },
        remedy="torchrun --max-restarts 3, and a script that loads its newest checkpoint at start",
    )


def interval_seconds(writing: float, between: float) -> float:
    """Return Young's interval between checkpoints, sqrt(2 C M).

    Example: 42 s to write, a failure in 33 days: sqrt(2 x 42 x 2.85e6) = 15,500 s, 4.3 hours.
    """
    return math.sqrt(2 * writing * between)

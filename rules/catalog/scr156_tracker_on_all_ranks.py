"""Every rank starts a run of the experiment tracker.

## What it finds
`wandb.init`, `SummaryWriter(...)`, `mlflow.start_run` and the like on all ranks. Silent where the run is grouped, or
its folder or mode depends on the rank.

## Why it matters
Four GPUs make four runs of which three hold one rank's figures, or nothing; TensorBoard shows overlapping curves.

## What to do
`run = wandb.init(...) if rank == 0 else None`, and log under the same condition.

## Source
https://docs.wandb.ai/guides/track/log/distributed-training;
https://github.com/huggingface/pytorch-image-models/issues/1309
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.saves import BY_RANK
from advisor.rules.source.value import LONE

RULE = ("SCR156", "tracker-on-all-ranks")
ON_PURPOSE = ("group", "job_type", "mode", "settings", "anonymous")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None or not case.source.many_ranks:
        return
    seen: set[tuple[str, int]] = set()
    for event in case.source.events:
        made = (
            event.kind == "call" and event.reached and event.value.role == "tracker" and event.value.node is event.node
        )
        guarded = any(guard.taint & (BY_RANK | {LONE}) and guard.split for guard in event.guards)
        given = (*event.args, *event.words.values())
        if not made or guarded or event.alone or any(value.taint & BY_RANK for value in given):
            continue
        if any(word in event.words for word in ON_PURPOSE) or (event.file, event.line) in seen:
            continue
        seen.add((event.file, event.line))
        yield found(
            case,
            RULE,
            "warning",
            event,
            happens="each rank starts a run of its own, and all but one hold a single rank's figures",
            remedy="start it on rank 0 only: run = wandb.init(...) if rank == 0 else None",
        )

"""The script starts its own processes and reads what torchrun sets.

## What it finds
`torch.multiprocessing.spawn` on a path that every start takes, in a script that reads LOCAL_RANK.

## Why it matters
Under torchrun each rank starts one process per GPU: 8 GPUs get 64 processes, with colliding ranks and ports. Without
it, LOCAL_RANK is missing or the same everywhere.

## What to do
One of the two: torchrun, and `main()` without `spawn`; or `spawn`, with the index that it passes as the rank.

## Source
https://docs.pytorch.org/docs/stable/elastic/train_script.html; torch.multiprocessing.spawn
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found

RULE = ("SCR137", "own-processes-beside-torchrun")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    source = case.source
    if source is None or not source.reads("LOCAL_RANK"):
        return
    for event in source.calls("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"):
        conditions = [guard for guard in event.guards if not guard.is_main]
        if not conditions and event.reached:
            yield found(
                case,
                RULE,
                "warning",
                event,
                happens="this starts one process per GPU, and the script reads LOCAL_RANK: under torchrun each rank "
                "would start as many again",
                remedy="leave spawn out and start it with torchrun --nproc-per-node=gpu, or use the index that spawn "
                "passes",
            )
            return

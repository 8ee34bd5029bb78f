"""Every rank uses the same GPU.

## What it finds
A GPU given by a fixed number ("cuda:0", `set_device(0)`, `.cuda(0)`, `device_ids=[0]`), or plain "cuda" without
`torch.cuda.set_device`, in a script that torchrun starts once per GPU.

## Why it matters
All ranks put their model on one GPU: it runs out of memory while the others idle, or NCCL stops with "Duplicate GPU
detected".

## What to do
`local_rank = int(os.environ["LOCAL_RANK"])`, `torch.cuda.set_device(local_rank)` first, and
`device = torch.device("cuda", local_rank)`.

## Source
https://docs.pytorch.org/docs/stable/elastic/run.html; https://github.com/pytorch/pytorch/issues/98763
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.devices import Use, device_uses
from advisor.rules.source.report import found

RULE = ("SCR131", "hard-coded-device")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None or not case.source.averages_gradients:
        return
    uses = list(device_uses(case.source))
    fixed = [use for use in uses if use.fixed]
    current = [] if any(use.chosen for use in uses) else [use for use in uses if not use.fixed]
    seen: set[tuple[str, int]] = set()
    for use in fixed or current[:1]:
        if use.at in seen:
            continue
        seen.add(use.at)
        yield _finding(case, use)


def _finding(case: Case, use: Use) -> Finding:
    happens = (
        "a fixed GPU: each rank that torchrun starts puts its model there"
        if use.fixed
        else "the current GPU is the first one on every rank: torch.cuda.set_device(local_rank) is never called"
    )
    remedy = (
        'local_rank = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(local_rank); device = '
        'torch.device("cuda", local_rank)'
    )
    return found(case, RULE, "error", use.at, happens=happens, remedy=remedy)

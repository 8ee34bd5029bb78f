"""The evaluation counts some samples twice.

## What it finds
A loader with a DistributedSampler that pads, used without a backward pass in a script that adds results up over ranks.

## Why it matters
DistributedSampler repeats samples until the ranks have equal shares. Up to one sample per rank counts twice: accuracy
depends a little on the number of GPUs, and more for small sets.

## What to do
Cut the results to the length of the dataset after gathering; or split by hand, `range(rank, len(dataset), world_size)`,
and add up counts; accelerate's `gather_for_metrics` does it.

## Source
torch.utils.data.distributed.DistributedSampler, `drop_last`; accelerate, `gather_for_metrics`
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.data import training_loaders
from advisor.rules.source.report import found
from advisor.rules.source.value import Value

RULE = ("SCR145", "evaluation-counts-padding")
SUMS = tuple(f"torch.distributed.{name}" for name in ("all_reduce", "reduce", "all_gather", "all_gather_object"))


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    source = case.source
    if source is None or not any(True for _ in source.calls(*SUMS)):
        return
    trained = [loader.value for loader in training_loaders(source)]
    seen: list[Value] = []
    for draw in source.events:
        loader = draw.receiver
        if draw.kind != "draw" or loader is None or loader in trained or loader in seen:
            continue
        seen.append(loader)
        sampler = loader.argument("sampler")
        if sampler is None or sampler.role != "sampler":
            continue
        cut = sampler.argument("drop_last")
        if cut is not None and cut.const is not False:
            continue
        yield found(
            case,
            RULE,
            "info",
            (loader.file, loader.line),
            happens="the sampler repeats samples until all ranks have as many: results count them twice",
            remedy="cut what is gathered to len(dataset), or give ranks range(rank, len(dataset), world_size)",
        )

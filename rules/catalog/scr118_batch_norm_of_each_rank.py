"""Batch normalisation is over each rank's own samples.

## What it finds
BatchNorm layers in a model that DistributedDataParallel wraps, never converted to SyncBatchNorm: information. Converted
after the wrap: a warning.

## Why it matters
Statistics come from one rank's samples. With few per GPU (detection, segmentation) they are noisy, and results differ
from those of one GPU with the whole batch. Where each GPU has 32 samples or more it rarely matters.

## What to do
`model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)` before the wrap; it costs one more collective per layer.

## Source
torch.nn.SyncBatchNorm
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.wraps import wraps

RULE = ("SCR118", "batch-norm-of-each-rank")
CONVERT = "torch.nn.SyncBatchNorm.convert_sync_batchnorm"
LAYERS = ("torch.nn.BatchNorm1d", "torch.nn.BatchNorm2d", "torch.nn.BatchNorm3d")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    source = case.source
    wrapped = list(wraps(source, "ddp")) if source is not None else []
    if source is None or not wrapped:
        return
    for event in source.calls(CONVERT):
        if event.args and event.args[0].role == "ddp":
            yield found(
                case,
                RULE,
                "warning",
                event,
                happens=f"the model was wrapped in line {wrapped[0].event.line}: layers exchanged now are not "
                "those that DDP knows",
                remedy="convert first, then wrap: DDP(SyncBatchNorm.convert_sync_batchnorm(model))",
            )
            return
    layer = next(source.calls(*LAYERS), None)
    if layer is None or any("SyncB" in event.name for event in source.events):
        return
    yield found(
        case,
        RULE,
        "info",
        wrapped[0].event,
        happens=f"its batch normalisation (line {layer.line}) is over each rank's own samples: noisy where few",
        remedy="model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) before this line",
        layer=layer.line,
    )

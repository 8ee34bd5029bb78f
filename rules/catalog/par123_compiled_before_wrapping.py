"""The script compiles the model first and wraps it with DDP afterwards.

## What it finds
`torch.compile` called on a line before the DistributedDataParallel call in the same file.

## Why it matters
Dynamo splits the graph at DDP's buckets only where it sees DDP: `torch.compile(DDP(model))`. The other way round the
backward pass is one graph, its gradients come together at the end, and the reduction overlaps with nothing.

## What to do
Wrap first, then compile: `model = torch.compile(DistributedDataParallel(model))`. Compiling single blocks before DDP is
fine. State dicts then have the prefix `_orig_mod.` outside of `module.`.

## Source
torch/_dynamo/backends/distributed.py, DDPOptimizer; https://docs.pytorch.org/docs/stable/notes/ddp.html
"""

from collections.abc import Iterator

from advisor.rules.catalog.par119_bucket_size_in_script import ddp_line
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("PAR123", "compiled-before-wrapping")
def check(case: Case) -> Iterator[Finding]:
    script = case.script
    if script is None or (case.plan is not None and case.plan.strategy != "ddp"):
        return
    compiled, wrapped = script.lines.get("torch.compile"), ddp_line(case)
    if compiled is None or wrapped is None or compiled > wrapped:
        return
    yield Finding(
        code="PAR123",
        name="compiled-before-wrapping",
        severity="info",
        message=(
            f"the model is compiled (line {compiled}) before DistributedDataParallel wraps it (line {wrapped}): the "
            "graph is not split at the buckets, and less of the reduction is hidden"
        ),
        facts={"compiled": compiled, "wrapped": wrapped},
        remedy="wrap first, then compile: model = torch.compile(DistributedDataParallel(model))",
        file=script.path,
        line=wrapped,
    )

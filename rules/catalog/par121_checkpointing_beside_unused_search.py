"""The script recomputes activations while DDP searches for unused parameters.

## What it finds
A script that uses `torch.utils.checkpoint` and passes `find_unused_parameters=True` without `static_graph=True`.

## Why it matters
Reentrant checkpointing, which is what `checkpoint` does unless told otherwise, hides its parameters from DDP's search:
they are taken for unused, then get a gradient, and the step stops with "marked as ready twice".

## What to do
Pass `use_reentrant=False` to `checkpoint`, or `static_graph=True` to DDP, and leave `find_unused_parameters` out.

## Source
torch.nn.parallel.DistributedDataParallel, `static_graph`; https://docs.pytorch.org/docs/stable/checkpoint.html
"""

from collections.abc import Iterator

from advisor.rules.catalog.par120_unused_parameters_searched import searches_unused
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

NAMES = ("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential")


@rule("PAR121", "checkpointing-beside-unused-search")
def check(case: Case) -> Iterator[Finding]:
    script = case.script
    used = next((name for name in NAMES if script and name in script.uses), None)
    if script is None or used is None or not searches_unused(case):
        return
    yield Finding(
        code="PAR121",
        name="checkpointing-beside-unused-search",
        severity="info",
        message=(
            "find_unused_parameters=True beside torch.utils.checkpoint: reentrant checkpointing, its default, stops "
            'with "marked as ready twice"'
        ),
        facts={"checkpoint": used},
        remedy="pass use_reentrant=False to checkpoint, or static_graph=True to DistributedDataParallel",
        file=script.path,
        line=script.lines.get(used),
    )

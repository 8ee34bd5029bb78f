"""The script has DDP search for unused parameters in every step.

## What it finds
`find_unused_parameters=True` in the script's DistributedDataParallel call, without `static_graph=True`.

## Why it matters
DDP then walks the graph in each forward pass, reduces one more bitmap, and never rebuilds its buckets in the order in
which gradients become ready, so that less of the reduction is hidden. PyTorch itself warns where it finds nothing
unused.

## What to do
Leave it out and run a step. If DDP then says "Expected to have finished reduction", parameters are unused: remove them,
or pass `static_graph=True` where the same ones are unused in all steps.

## Source
torch.nn.parallel.DistributedDataParallel; csrc/distributed/c10d/reducer.hpp, `should_rebuild_buckets`
"""

from collections.abc import Iterator

from advisor.rules.catalog.par119_bucket_size_in_script import ddp_line
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("PAR120", "unused-parameters-searched")
def check(case: Case) -> Iterator[Finding]:
    script = case.script
    if script is None or not searches_unused(case):
        return
    yield Finding(
        code="PAR120",
        name="unused-parameters-searched",
        severity="info",
        message=(
            "find_unused_parameters=True walks the graph in each step, sends one more all-reduce, and keeps buckets in "
            "the order of registration, which hides less of the reduction"
        ),
        facts={"find_unused_parameters": True},
        remedy="leave find_unused_parameters out; if DDP then stops, pass static_graph=True instead",
        file=script.path,
        line=ddp_line(case),
    )


def searches_unused(case: Case) -> bool:
    """Say whether the script has DDP look for unused parameters in each step; on one rank nothing is lost by it."""
    if case.script is None or (case.plan is not None and case.plan.ranks == 1):
        return False
    arguments = case.script.ddp_arguments
    return arguments.get("find_unused_parameters") is True and arguments.get("static_graph") is not True

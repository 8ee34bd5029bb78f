"""The GPUs of the plan differ in model or in links.

## What it finds
A plan, or a machine without one, over GPUs of several models, or of islands of different sizes: four on one socket and
two on the other, two with a bridge and one without.

## Why it matters
All ranks work on equal shares and meet in each collective, so that the slowest GPU and the worst link decide for all.
And hybrid sharding needs islands of one size.

## What to do
Compare with the equal ones alone: `advisor recommend` prices them. Or `--gpus N`, which takes those with the best
ring.

## Source
The machine's own facts, as `advisor probe` lists them
"""

from collections.abc import Iterator

from msgspec.structs import replace

from advisor.rules.asymmetry import asymmetries
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("NET122", "gpus-are-uneven")
def check(case: Case) -> Iterator[Finding]:
    machine, plan = case.machine, case.plan
    used = tuple(gpu for gpu in machine.gpus if plan is None or gpu.id in plan.gpus)
    for found in asymmetries(replace(machine, gpus=used)):
        if found.what not in ("model", "links"):
            continue  # memory and slots have rules of their own
        sizes = [len(group) for group in found.groups]
        decides = "the slowest model sets the pace of all" if found.what == "model" else "the worst link sets the pace"
        yield Finding(
            code="NET122",
            name="gpus-are-uneven",
            severity="info",
            message=f"{found.message}: {decides}",
            facts={"what": found.what, "groups": [list(group) for group in found.groups]},
            remedy=f"compare with the largest group alone: advisor recommend --gpus {max(sizes)}",
        )

"""The installed torch is older than what the plan uses.

## What it finds
A plan for a machine with torch before 2.11, which `advisor apply` needs; a sharded plan with torch before 2.6.

## Why it matters
Plans are made and tested for 2.11 and later. `fully_shard` is in torch.distributed.fsdp since 2.6; before, a sharded
plan can't be carried out as it is described.

## What to do
Update torch.

## Source
https://github.com/pytorch/pytorch/releases/tag/v2.6.0
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.versions import older

TESTED, FULLY_SHARD = "2.11", "2.6"


@rule("ENV131", "torch-older-than-plan")
def check(case: Case) -> Iterator[Finding]:
    plan, torch = case.plan, case.machine.software.torch
    if plan is None or not older(torch, TESTED):
        return
    fails = plan.strategy in ("fsdp", "hsdp") and older(torch, FULLY_SHARD)
    reason = f"fully_shard came with {FULLY_SHARD}" if fails else f"advisor apply needs {TESTED}"
    yield Finding(
        code="ENV131",
        name="torch-older-than-plan",
        severity="error" if fails else "info",
        message=f"torch {torch} is installed; {reason}",
        facts={"torch": torch, "needed": FULLY_SHARD if fails else TESTED},
        remedy='pip install --upgrade "torch>=2.11"',
    )

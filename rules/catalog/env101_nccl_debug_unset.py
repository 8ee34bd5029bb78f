"""NCCL is silent: NCCL_DEBUG is not set.

## What it finds
A plan on several GPUs whose environment does not set NCCL_DEBUG.

## Why it matters
Without it a failing collective reports a bare error code. With WARN, NCCL prints the reason of each failing call and
nothing else; NVIDIA calls WARN the minimum for production.

## What to do
Nothing: the plan sets NCCL_DEBUG=WARN, and a run writes what NCCL says to logs/nccl.HOST.PID, so that the script's own
output stays as it is. A value of your own is kept.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("ENV101", "nccl-debug-unset")
def check(case: Case) -> Iterator[Finding]:
    plan = case.plan
    if plan is None or plan.ranks == 1 or plan.launcher.device == "cpu" or "NCCL_DEBUG" in case.machine.environment:
        return
    yield Finding(
        code="ENV101",
        name="nccl-debug-unset",
        severity="info",
        message="NCCL_DEBUG is not set; the plan sets WARN, so that a failing collective says why",
        facts={"env": {"NCCL_DEBUG": "WARN"}},
        remedy="none needed; export NCCL_DEBUG yourself to choose another level",
    )

"""An NCCL variable is set that is meant for one diagnostic run.

## What it finds
Variables that NVIDIA documents for debugging, or not at all, with a value other than the default: NCCL_NTHREADS,
NCCL_BUFFSIZE, NCCL_MIN_CTAS, NCCL_MAX_CTAS, NCCL_NET_GDR_LEVEL, NCCL_RUNTIME_CONNECT and others. Those that need a
look at the machine have rules of their own, ENV107 to ENV116.

## Why it matters
They overrule what NCCL chooses by the machine. Measured on two H200 through host memory: NCCL_NTHREADS=256 cost 14-23
%, NCCL_BUFFSIZE helped nowhere, NCCL_MIN_CTAS=16 won 8-15 % alone and then made an FSDP step 7 % slower,
NCCL_SHM_USE_CUDA_MEMCPY=1 won alone and hung training. One channel carries 20 to 40 GB/s, so NCCL_MAX_CTAS=4 leaves
at most 160 GB/s of what NVLink could do.

## What to do
Unset it and compare step times. Keep it only if it won on this machine under your training step.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html, "Debugging"; docs/models.md for the measurements;
rules/nccl_variables.toml has each variable's row
"""

from collections.abc import Iterator

from advisor.rules.format import bandwidth
from advisor.rules.machine import Machine
from advisor.rules.nccl_variables import Setting, Variable, nccl_version, number, release, settings, variables
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

CHANNEL = 40e9  # bytes per second that one channel carries at most over NVLink
NOTABLE = 0.9  # of the links; what leaves less than this costs more than 10 %


@rule("ENV103", "nccl-variable-for-diagnosis")
def check(case: Case) -> Iterator[Finding]:
    version = nccl_version(case.machine)
    for found in settings(case.machine):
        row = variables().get(found.name)
        if row is None or row.policy not in ("diagnosis", "undocumented") or row.changes_nothing(found.value):
            continue
        if row.removed and version >= release(row.removed):
            continue  # ENV102 says so
        limit = _limit(case.machine, found)
        cost = limit or row.cost or "NCCL has it for its own developers, and chooses itself where it is not set"
        yield Finding(
            code="ENV103",
            name="nccl-variable-for-diagnosis",
            severity="warning" if limit or _harms(row, found) else "info",
            message=f"{found.words} is for diagnosis: {cost}",
            facts=found.facts | {"source": row.source},
            remedy=f"{found.undo}, or keep it only if it won under your training step on this machine",
        )


def _harms(row: Variable, found: Setting) -> bool:
    """Say whether the row's cost is as large as a warning needs: what was measured was less than the default."""
    if row.severity != "warning" or row.name != "NCCL_NTHREADS":
        return row.severity == "warning"
    return number(found.value) < number(row.default or "0")


def _limit(machine: Machine, found: Setting) -> str | None:
    """Say what so few channels leave of NVLink; None where that is enough, or not known."""
    links = [k.bandwidth for k in machine.links if k.kind == "nvlink" and k.bandwidth is not None]
    channels = number(found.value)
    if found.name != "NCCL_MAX_CTAS" or not links or channels < 1 or channels * CHANNEL >= NOTABLE * max(links):
        return None
    return f"{channels} x {bandwidth(CHANNEL)} is less than the {bandwidth(max(links))} of the NVLinks"

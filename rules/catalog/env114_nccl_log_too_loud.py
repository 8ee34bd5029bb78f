"""NCCL is set to log far more than training needs.

## What it finds
NCCL_DEBUG at INFO, ABORT or TRACE; NCCL_DEBUG_SUBSYS that asks for one line or more for each collective (ALL, COLL,
P2P, PROXY, TRACE) beside it; and a level that NCCL does not know.

## Why it matters
INFO prints tens of lines for each rank at the start, and with COLL one for each call: logs of many ranks grow to
gigabytes, and what failed drowns in them. TRACE prints nothing more unless NCCL was built for it. WARN, which a plan
sets, says why a call fails, and nothing else.

## What to do
export NCCL_DEBUG=WARN, and INFO again for the run that looks for something.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug
"""

from collections.abc import Iterator

from advisor.rules.nccl_variables import Setting, setting
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

QUIET = ("NONE", "VERSION", "WARN")
LOUD = ("INFO", "ABORT", "TRACE")
EACH_CALL = {"ALL", "COLL", "P2P", "PROXY", "TRACE"}


@rule("ENV114", "nccl-log-too-loud")
def check(case: Case) -> Iterator[Finding]:
    found = setting(case.machine, "NCCL_DEBUG")
    if found is None or found.value.upper() in QUIET:
        return
    yield Finding(
        code="ENV114",
        name="nccl-log-too-loud",
        severity="info",
        message=f"{found.words} {_why(found, setting(case.machine, 'NCCL_DEBUG_SUBSYS'))}",
        facts=found.facts,
        remedy="export NCCL_DEBUG=WARN" + (f", and {found.undo}" if found.file else ""),
    )


def _why(found: Setting, subsystems: Setting | None) -> str:
    level = found.value.upper()
    if level not in LOUD:
        return "is no level that NCCL knows, so it says nothing"
    calls = set(subsystems.value.upper().split(",")) & EACH_CALL if subsystems else set()
    if calls:
        return f"with NCCL_DEBUG_SUBSYS={subsystems.value if subsystems else ''} prints lines for each collective"
    return "prints tens of lines for each rank; it is for one run that looks for something"

"""A variable keeps torch from ending a run in which a rank failed.

## What it finds
TORCH_NCCL_ASYNC_ERROR_HANDLING=0, TORCH_NCCL_ENABLE_MONITORING=0, TORCH_NCCL_BLOCKING_WAIT=1, or the older names that
begin with NCCL_.

## Why it matters
A collective that one rank never reaches does not end by itself: torch's watchdog ends it after the time limit. Without
it the GPUs spin at 100 % and are paid for until somebody looks. With blocking wait the host stops at each
collective, so that communication no longer overlaps with computing.

## What to do
Unset it: the defaults are on, and torchrun sets what it needs.

## Source
https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding, Severity
from advisor.rules.rule import Case, rule

SWITCHES: dict[str, tuple[bool, Severity, str]] = {  # whether on is the fault
    "ASYNC_ERROR_HANDLING": (False, "warning", "a failed collective leaves the other ranks waiting for ever"),
    "ENABLE_MONITORING": (False, "info", "a watchdog that hangs itself ends nothing"),
    "BLOCKING_WAIT": (True, "warning", "the host stops at each collective, so nothing overlaps with it"),
}


@rule("ENV142", "failures-go-unnoticed")
def check(case: Case) -> Iterator[Finding]:
    for name, value in case.machine.environment.items():
        switch = SWITCHES.get(name.removeprefix("TORCH_").removeprefix("NCCL_"))
        if switch is None or value == "":
            continue
        fault, severity, means = switch
        if (value.lower() not in ("0", "false", "off")) != fault:
            continue
        yield Finding(
            code="ENV142",
            name="failures-go-unnoticed",
            severity=severity,
            message=f"{name}={value} is set: {means}",
            facts={"variable": name, "value": value},
            remedy=f"unset {name}",
        )

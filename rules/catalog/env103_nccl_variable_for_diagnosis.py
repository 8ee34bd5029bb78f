"""An NCCL variable is set that is meant for one diagnostic run.

## What it finds
NCCL_ALGO, NCCL_PROTO, NCCL_NTHREADS, NCCL_BUFFSIZE, NCCL_P2P_LEVEL, NCCL_SHM_DISABLE, NCCL_IB_DISABLE,
NCCL_NET_GDR_LEVEL and NCCL_CHECKS_DISABLE in the environment or in an NCCL configuration file.

## Why it matters
NVIDIA documents these as debugging variables that may cost speed, crash or hang in production. Measured on two H200
through host memory: NCCL_NTHREADS=256 cost 14-23 %, NCCL_BUFFSIZE helped nowhere. Forcing NCCL_PROTO=LL128 where it is
not supported can corrupt data.

## What to do
Unset it and compare step times. Keep it only if it won on this machine under your training step.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html, "Debugging"; docs/models.md for the measurements
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

DIAGNOSTIC = frozenset(
    {
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_NTHREADS",
        "NCCL_BUFFSIZE",
        "NCCL_P2P_LEVEL",
        "NCCL_SHM_DISABLE",
        "NCCL_IB_DISABLE",
        "NCCL_NET_GDR_LEVEL",
        "NCCL_CHECKS_DISABLE",
    }
)
HARMLESS = ("", "0")


@rule("ENV103", "nccl-variable-for-diagnosis")
def check(case: Case) -> Iterator[Finding]:
    for name, value in case.machine.environment.items():
        if name not in DIAGNOSTIC or (name.endswith("_DISABLE") and value in HARMLESS):
            continue
        yield Finding(
            code="ENV103",
            name="nccl-variable-for-diagnosis",
            severity="warning",
            message=f"{name}={value} is set; it is a debugging variable that may slow, hang or crash training",
            facts={"variable": name, "value": value},
            remedy=f"unset {name}, or keep it only if it won under your training step on this machine",
        )

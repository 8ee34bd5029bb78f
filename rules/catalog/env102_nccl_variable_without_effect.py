"""An NCCL variable is set that NCCL no longer reads.

## What it finds
Variables that NCCL removed (NCCL_SINGLE_RING_THRESHOLD in 2.3, NCCL_IB_CUDA_SUPPORT in 2.4, NCCL_LL_THRESHOLD and
NCCL_TREE_THRESHOLD in 2.5) or renamed (NCCL_MIN_NCHANNELS, NCCL_MAX_NCHANNELS and *_NRINGS, since 2.17 NCCL_MIN_CTAS
and NCCL_MAX_CTAS).

## Why it matters
Removed variables are ignored without a word: a setting copied from an old post does nothing, and costs time.

## What to do
Unset them. Where a new name exists, use it only after it won on this machine under your training step.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html and NCCL's release notes
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

REMOVED = {
    "NCCL_SINGLE_RING_THRESHOLD": "NCCL 2.3",
    "NCCL_IB_CUDA_SUPPORT": "NCCL 2.4",
    "NCCL_LL_THRESHOLD": "NCCL 2.5",
    "NCCL_TREE_THRESHOLD": "NCCL 2.5",
}
RENAMED = {
    "NCCL_MIN_NRINGS": "NCCL_MIN_CTAS",
    "NCCL_MAX_NRINGS": "NCCL_MAX_CTAS",
    "NCCL_MIN_NCHANNELS": "NCCL_MIN_CTAS",
    "NCCL_MAX_NCHANNELS": "NCCL_MAX_CTAS",
}


@rule("ENV102", "nccl-variable-without-effect")
def check(case: Case) -> Iterator[Finding]:
    for name, value in case.machine.environment.items():
        if name in REMOVED:
            message = f"{name}={value} is set; it was removed in {REMOVED[name]} and does nothing"
        elif name in RENAMED:
            message = f"{name}={value} is set; it is the deprecated name of {RENAMED[name]}"
        else:
            continue
        yield Finding(
            code="ENV102",
            name="nccl-variable-without-effect",
            severity="warning",
            message=message,
            facts={"variable": name, "value": value},
            remedy=f"unset {name}",
        )

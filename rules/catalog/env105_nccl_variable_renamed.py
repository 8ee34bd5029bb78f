"""An NCCL variable is set by its old name.

## What it finds
NCCL_MIN_NCHANNELS, NCCL_MAX_NCHANNELS and their older forms NCCL_MIN_NRINGS, NCCL_MAX_NRINGS (since 2.17
NCCL_MIN_CTAS and NCCL_MAX_CTAS), and NCCL_CHECK_POINTERS (since 2.29.7 NCCL_CHECK_MODE).

## Why it matters
The old name still works and will go. Where the old and the new name are both set, NCCL takes the more restrictive
value, so one of the two is a surprise. A number of channels set by hand seldom wins: measured on two H200, a minimum
of 16 won 8-15 % in a benchmark of collectives and made an FSDP step 7 % slower.

## What to do
Unset it and compare step times. If it wins, set it by the new name.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-max-ctas
"""

from collections.abc import Iterator

from advisor.rules.nccl_variables import nccl_version, release, setting, settings, variables
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("ENV105", "nccl-variable-renamed")
def check(case: Case) -> Iterator[Finding]:
    version = nccl_version(case.machine)
    for found in settings(case.machine):
        row = variables().get(found.name)
        if row is None or row.policy != "renamed" or row.new is None or version < release(row.renamed or ""):
            continue
        both = setting(case.machine, row.new)
        also = f"; {both.words} is set too, and the more restrictive value wins" if both else ""
        yield Finding(
            code="ENV105",
            name="nccl-variable-renamed",
            severity="info",
            message=f"{found.words} is the old name of {row.new}, since NCCL {row.renamed}{also}",
            facts=found.facts | {"instead": row.new},
            remedy=f"{found.undo}; set {row.new} only if it won under your training step on this machine",
        )

"""An NCCL variable is set that this NCCL does not read.

## What it finds
Variables that NCCL removed (NCCL_LL_THRESHOLD in 2.5), that only a newer NCCL than the machine's reads, and names
that no NCCL up to 2.30 has, with the nearest name that exists: NCCL_IB_TIMEOUTS is probably NCCL_IB_TIMEOUT. Names
that plugins read, such as NCCL_OFI_*, are left alone.

## Why it matters
NCCL ignores what it does not know, without a word: a setting copied from an old post, or with a slip of the pen, does
nothing, and costs the time of all who believe in it.

## What to do
Correct the name, or unset it, in the layer that the finding names: the environment, or a file of NCCL.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html and NCCL's source from 2.3 to 2.30, see
rules/nccl_variables.toml
"""

from collections.abc import Iterator

from advisor.rules.nccl_variables import (
    Setting,
    Variable,
    nccl_version,
    nearest,
    of_plugin,
    release,
    settings,
    variables,
)
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("ENV102", "nccl-variable-without-effect")
def check(case: Case) -> Iterator[Finding]:
    version = nccl_version(case.machine)
    for found in settings(case.machine):
        row = variables().get(found.name)
        said = _without_effect(row, version) if row else _unknown(found)
        if said is None:
            continue
        why, instead = said
        yield Finding(
            code="ENV102",
            name="nccl-variable-without-effect",
            severity="info",
            message=f"{found.words}: {why}",
            facts=found.facts | ({"instead": instead} if instead else {}),
            remedy=found.undo + (f", or set {instead} if you meant that" if instead else ""),
        )


def _without_effect(row: Variable, version: tuple[int, ...]) -> tuple[str, str | None] | None:
    """Say why the variable has no effect, and its other name if it has one; None where NCCL reads it."""
    if row.removed and version >= release(row.removed):
        return f"NCCL {row.removed} removed it, so it does nothing", row.new
    if row.since and version < release(row.since):
        return f"NCCL {'.'.join(map(str, version))} does not read it, {row.since} is the first that does", None
    return None


def _unknown(found: Setting) -> tuple[str, str | None] | None:
    if of_plugin(found.name):
        return None
    near = nearest(found.name)
    return f"NCCL has no such variable{f', the nearest is {near}' if near else ''}", near

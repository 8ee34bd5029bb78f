"""NCCL does not read a variable's value as it is meant.

## What it finds
Numbers with anything beside their digits (NCCL_IB_DISABLE=true, NCCL_BUFFSIZE=4M), quotes and blanks that are part of
a value, blanks that are part of a name, and distances (NCCL_P2P_LEVEL, NCCL_NET_GDR_LEVEL) in lower case, as a number
of the old kind, or unknown.

## Why it matters
NCCL's files know no quotes and strip nothing, and `docker run --env-file` keeps quotes as well. A number is read up
to the first character that is no digit, so true and "1" are 0 and 4M is 4, with no word of it below NCCL_DEBUG=INFO.
A distance is compared letter by letter: pix is not PIX and is ignored.

## What to do
Write the value as NCCL reads it: NAME=value, digits for numbers, capitals for distances.

## Source
https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/misc/param.cc and src/graph/paths.cc, ncclGetLevel;
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-p2p-level
"""

import re
from collections.abc import Iterator

from advisor.rules.nccl_choice import LEVELS, level_of
from advisor.rules.nccl_variables import Setting, Variable, number, settings, variables
from advisor.rules.plan import Finding, Severity
from advisor.rules.rule import Case, rule

SWITCHES = {"true": "1", "yes": "1", "on": "1", "false": "0", "no": "0", "off": "0"}
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
# Text that decides whether training starts at all; quotes in other texts spoil a log's name at worst.
DECISIVE = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NET", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME")

_NUMBER = re.compile(r"\s*[+-]?(0[xX][0-9a-fA-F]+|\d+)\s*")
_SCALED = re.compile(r"(\d+)([kKmMgG])[iI]?[bB]?")
_AROUND = "'\" \t\r"


@rule("ENV106", "nccl-value-misread")
def check(case: Case) -> Iterator[Finding]:
    for found in settings(case.machine):
        said = _misread(found)
        if said is None:
            continue
        severity, why, meant = said
        written = f"write {found.name.strip()}={meant}" + (f" in {found.file}" if found.file else "")
        yield Finding(
            code="ENV106",
            name="nccl-value-misread",
            severity=severity,
            message=f"{found.words}: {why}",
            facts=found.facts | {"meant": meant},
            remedy=written if meant else found.undo,
        )


def _misread(found: Setting) -> tuple[Severity, str, str] | None:
    """Return how much it matters, what NCCL makes of the value, and what was probably meant."""
    bare = found.value.strip(_AROUND)
    if found.name != found.name.strip():
        return "info", "the blank is part of the name, so nobody reads it", bare
    row = variables().get(found.name)
    if row is None or not found.value:
        return None
    if row.kind == "number":
        return _number(row, found.value, bare)
    if row.kind == "level":
        return _level(found.value, bare)
    if found.value == bare:
        return None
    return "warning" if row.name in DECISIVE else "info", "quotes and blanks are part of the value", bare


def _number(row: Variable, value: str, bare: str) -> tuple[Severity, str, str] | None:
    if _NUMBER.fullmatch(value):
        return None
    read = number(value)
    scaled = _SCALED.fullmatch(bare)
    meant = SWITCHES.get(bare.lower(), bare if _NUMBER.fullmatch(bare) else "")
    if scaled:
        meant = str(int(scaled[1]) * UNITS[scaled[2].lower()])
    if read == number(meant or str(read)):
        return "info", f"NCCL takes numbers only; this is read as {read}, by luck", meant or str(read)
    changed = row.default is None or read != number(row.default)
    return "warning" if changed else "info", f"NCCL reads this as {read}", meant


def _level(value: str, bare: str) -> tuple[Severity, str, str] | None:
    if value in LEVELS:
        return None
    old = level_of(value)
    if old is not None:
        return "info", f"the numbers are of the old kind, and this one means {old}", old
    meant = bare.upper() if bare.upper() in LEVELS else ""
    return "info", "NCCL knows no such distance and ignores it; capitals count", meant

"""torch will not take the settings of its memory allocator, or not all of them.

## What it finds
In PYTORCH_ALLOC_CONF or PYTORCH_CUDA_ALLOC_CONF: an entry without a colon, such as expandable_segments=True;
max_split_size_mb of 20 or less; both variables with different values, of which the newer name wins.

## Why it matters
torch reads the text at the first use of CUDA and stops at what it can't read.

## What to do
Write NAME:VALUE pairs with commas between them, in one of the two variables. PYTORCH_CUDA_ALLOC_CONF is the older name.

## Source
https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf
"""

import re
from collections.abc import Iterator

from advisor.rules.plan import Finding, Severity
from advisor.rules.rule import Case, rule

NEW, OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
SMALLEST_SPLIT = 20  # MiB, and must be exceeded
_LIST = re.compile(r"\[[^\]]*\]")  # of roundup_power2_divisions: [256:1,512:2]


@rule("ENV143", "allocator-setting-is-refused")
def check(case: Case) -> Iterator[Finding]:
    new, old = (case.machine.environment.get(name) for name in (NEW, OLD))
    for name, value in ((NEW, new), (OLD, old if new is None else None)):
        for entry in filter(None, (part.strip() for part in _LIST.sub("", value or "").split(","))):
            option, colon, number = (part.strip() for part in entry.partition(":"))
            if not colon:
                wanted = re.sub(r"\s*=\s*|\s+", ":", entry)
                yield _finding("error", f"{name} has {entry!r}, not NAME:VALUE; torch stops there", name, wanted)
            elif option == "max_split_size_mb" and number.isdecimal() and int(number) <= SMALLEST_SPLIT:
                message = f"{name} has {entry}; torch refuses {SMALLEST_SPLIT} MiB and less"
                yield _finding("error", message, name, "max_split_size_mb:128")
    if new and old and new != old:
        yield _finding("info", f"{NEW}={new} and {OLD}={old} differ; torch takes the first", OLD, None)


def _finding(severity: Severity, message: str, name: str, wanted: str | None) -> Finding:
    return Finding(
        code="ENV143",
        name="allocator-setting-is-refused",
        severity=severity,
        message=message,
        facts={"variable": name},
        remedy=f"export {name}={wanted}" if wanted else f"unset {name}",
    )

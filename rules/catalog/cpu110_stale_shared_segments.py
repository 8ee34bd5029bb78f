"""Dead runs left segments in /dev/shm.

## What it finds
Files of NCCL or torch in /dev/shm that no process has open, or of which that is not known.

## Why it matters
A run that is killed can't remove its segments. In a pod that restarts in place each attempt adds a batch, until NCCL
finds no space and every further start fails.

## What to do
Remove the ones that no process has open, then mend what ended the first run. Nothing here removes them for you.

## Source
https://github.com/llm-d/llm-d/issues/352
"""

import shlex
from collections.abc import Iterator

from advisor.rules.format import binary, plural
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

SHOWN = 5


@rule("CPU110", "stale-shared-segments")
def check(case: Case) -> Iterator[Finding]:
    left = [segment for segment in case.machine.shared_segments if not segment.open]
    if not left:
        return
    size = sum(segment.size for segment in left)
    sure = all(segment.open is False for segment in left)
    names = [segment.name.removeprefix("/dev/shm/") for segment in left]
    paths = " ".join(shlex.quote(f"/dev/shm/{name}") for name in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    yield Finding(
        code="CPU110",
        name="stale-shared-segments",
        severity="info",
        message=(
            f"{plural(len(left), 'segment')} of earlier runs in /dev/shm, {binary(size)}; "
            f"{'no process has them open' if sure else 'whether a process has them open is not known'}"
        ),
        facts={"segments": len(left), "size": size, "names": names},
        remedy=f"rm {paths}{more}" if sure else f"fuser {paths}{more}, then rm those that no process has open",
    )

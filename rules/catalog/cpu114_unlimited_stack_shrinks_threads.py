"""`ulimit -s unlimited` gives NCCL's threads a smaller stack.

## What it finds
No limit of the stack, with an NCCL older than 2.28.

## Why it matters
Without a limit the C library gives new threads 2 MB instead of the usual 8. NCCL's search for rings is recursive and
has crashed with that on large machines. From 2.28 on NCCL asks for what it needs.

## What to do
Set the usual limit, on each host and in the job itself.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
"""

from collections.abc import Iterator

from advisor.rules.host_ranks import ranks
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.versions import older


@rule("CPU114", "unlimited-stack-shrinks-threads")
def check(case: Case) -> Iterator[Finding]:
    nccl = case.machine.software.nccl
    if case.machine.host.stack != -1 or ranks(case) < 2 or not older(nccl, "2.28"):
        return
    yield Finding(
        code="CPU114",
        name="unlimited-stack-shrinks-threads",
        severity="info",
        message=f"ulimit -s is unlimited, which leaves threads of NCCL {nccl} 2 MB of stack instead of 8",
        facts={"nccl": nccl},
        remedy="ulimit -s 8192",
    )

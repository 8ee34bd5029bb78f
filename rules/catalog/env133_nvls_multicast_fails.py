"""NCCL's log says that multicast through NVSwitch (NVLS) can't be set up.

## What it finds
A warning of NCCL about NVLS or multicast memory in a log that was given, unless NCCL_NVLS_ENABLE=0 is set.

## Why it matters
From 2.29 on NCCL then stops; 2.27 and 2.28 went on without, or hung where only some ranks failed. The cause is on the
host: the fabric manager, or a container without /dev/nvidia-caps. Without NVLS an all-reduce on eight H100 has 360
instead of 476 GB/s.

## What to do
The plan sets NCCL_NVLS_ENABLE=0. Have the fabric manager or the container mended, then take it out again.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-nvls-enable; https://github.com/NVIDIA/nccl/issues/1788
"""

import re
from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.versions import older

VARIABLE = "NCCL_NVLS_ENABLE"
FATAL = "2.29"
_SIGNATURE = re.compile(r"(?i)nvls.*(?:fail|error|invalid argument)|fail.*(?:nvls|multicast)|multicast.*(?:fail|error)")


@rule("ENV133", "nvls-multicast-fails")
def check(case: Case) -> Iterator[Finding]:
    log = case.machine.nccl_log
    if log is None or case.machine.environment.get(VARIABLE) == "0":
        return
    said = next((text for text in log.warnings if _SIGNATURE.search(text)), None)
    if said is None:
        return
    version = log.version or case.machine.software.nccl
    goes_on = older(version, FATAL)
    yield Finding(
        code="ENV133",
        name="nvls-multicast-fails",
        severity="warning" if goes_on else "error",
        message=f"NCCL {version or ''} can't use NVSwitch multicast{'' if goes_on else ' and stops'}: {said}",
        facts={"said": said, "nccl": version, "env": {VARIABLE: "0"}},
        remedy=f"export {VARIABLE}=0; have nvidia-fabricmanager and /dev/nvidia-caps in the container checked",
    )

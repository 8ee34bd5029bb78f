"""NVLink SHARP is switched off on a machine that has it.

## What it finds
NCCL_NVLS_ENABLE=0, or NCCL_CUMEM_ENABLE=0 which switches it off as well, on Hopper or newer GPUs behind an NVSwitch,
with no sign that multicast is broken there. Elsewhere NCCL_CUMEM_ENABLE=0 is a note.

## Why it matters
NVSwitch then no longer adds up: about 360 instead of 475 GB/s all-reduce on eight H100 or H200, 24 % less. Without
cuMem, NVLink between hosts (MNNVL) and registered buffers go as well.

## What to do
Unset it. If NCCL then fails with "Failed to bind NVLink SHARP (NVLS) Multicast memory", keep it until the fabric
manager or the container is mended: ENV133.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-nvls-enable and #nccl-cumem-enable;
https://github.com/NVIDIA/nccl-tests/issues/212; docs/machines.md
"""

from collections.abc import Iterator

from advisor.rules.nccl_choice import fabric_is_down, has_multicast, multicast_failure
from advisor.rules.nccl_variables import number, setting
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

WITH, WITHOUT = 475e9, 360e9  # bytes per second of all-reduce, bus bandwidth, eight H100


@rule("ENV116", "nvls-switched-off")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    capable = has_multicast(machine)
    if capable and (multicast_failure(machine) or fabric_is_down(machine)):
        return
    for name in ("NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE"):
        found = setting(machine, name)
        if found is None or number(found.value) != 0 or (not capable and name == "NCCL_NVLS_ENABLE"):
            continue
        why = (
            "NVSwitch no longer adds up: about 360 instead of 475 GB/s all-reduce on eight H100, 24 % less"
            if capable
            else "NVLink SHARP, NVLink between hosts and registered buffers need it, where a machine has them"
        )
        yield Finding(
            code="ENV116",
            name="nvls-switched-off",
            severity="warning" if capable else "info",
            message=f"{found.words}: {why}",
            facts=found.facts | ({"with": WITH, "without": WITHOUT} if capable else {}),
            remedy=f"{found.undo}; keep it only while NCCL fails without it",
        )

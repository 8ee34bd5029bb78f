"""The kernel log has Xid messages of the NVIDIA driver.

## What it finds
Lines "NVRM: Xid" among the kernel's messages, by code.

## Why it matters
Some codes are faults of the hardware, the driver or the bus: 79 (the GPU fell off the bus), 48 and 95 (memory), 74
(NVLink), 119 and 120 (the GPU's own processor). A GPU with one of these fails again. Others, such as 13, 31 and 43,
come from the program: an index out of range, an illegal address.

## What to do
Look the code up in NVIDIA's catalogue, which says what to do with the GPU: reset it, reboot, or have it checked.

## Source
https://docs.nvidia.com/deploy/xid-errors/
"""

import re
from collections.abc import Iterator

from advisor.rules.format import plural
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

HARDWARE = {
    48: "uncorrectable memory error",
    62: "the GPU's controller halted",
    64: "a bad memory page could not be retired",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many memory errors",
    95: "uncontained memory error",
    109: "context switch timed out",
    119: "the GPU's own processor does not answer",
    120: "the GPU's own processor failed",
    136: "alignment of a link failed",
    140: "unrecovered memory error",
    145: "NVLink error",
    149: "NVLink error",
}
_XID = re.compile(r"Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d+)")


@rule("ENV138", "gpu-faults-in-kernel-log")
def check(case: Case) -> Iterator[Finding]:
    seen: dict[int, list[str]] = {}
    for line in case.machine.kernel_log:
        if match := _XID.search(line):
            seen.setdefault(int(match[2]), []).append(match[1])
    for code, addresses in sorted(seen.items()):
        places = list(dict.fromkeys(addresses))
        meaning = HARDWARE.get(code)
        yield Finding(
            code="ENV138",
            name="gpu-faults-in-kernel-log",
            severity="warning" if meaning else "info",
            message=(
                f"the kernel log has {plural(len(addresses), 'message')} Xid {code}"
                f"{f' ({meaning})' if meaning else ''} for {', '.join(places)}"
            ),
            facts={"xid": code, "times": len(addresses), "gpus": places},
            remedy=f"look Xid {code} up at https://docs.nvidia.com/deploy/xid-errors/"
            + ("; reset the GPU (sudo nvidia-smi --gpu-reset) or have the host checked" if meaning else ""),
        )

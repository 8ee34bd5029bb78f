"""Read the kernel's command line, and lines of `dmesg` on GPUs, PCIe, the IOMMU and killed processes."""

import re

from advisor.probe.iommu import Mode, iommu_mode
from advisor.probe.text.paste import plain
from advisor.rules.machine import Host, Machine

MOST_LINES, LONGEST = 200, 300

_COMMAND_LINE = re.compile(r"^(?:.{0,80}\bCommand line: )?((?:BOOT_IMAGE|root|initrd)=\S[^\n]*)$", re.MULTILINE)
_STAMP = re.compile(r"\bkernel: |^[ \t]*(?:<\d{1,3}>)?\[\s*\d{1,9}\.\d{1,6}\]|^\[[A-Z][a-z]{2} [A-Z][a-z]{2} ")
_SUBJECT = re.compile(
    r"NVRM|\bXid\b|DMAR|AMD-Vi|IOMMU|\bAER\b|PCIe Bus Error|pcieport|PCIe bandwidth|[Oo]ut of memory|oom[-_]|"
    r"nvidia|nvswitch|knvlink|nvlink|mlx[45]_|\bmlx[45]|\bACS\b|\bEFA\b|infiniband",
)
_MODES: tuple[tuple[str, Mode], ...] = (
    (r"Default domain type: Translated", "translating"),
    (r"Default domain type: Passthrough", "passthrough"),
    (
        r"DMAR: \[(?:DMA (?:Read|Write)|INTR-REMAP)|DRHD: handling fault|IO_PAGE_FAULT|arm-smmu.*event 0x10",
        "translating",
    ),
)


def read_kernel(text: str, source: str) -> Machine | None:
    """Build a machine of which the kernel's command line and messages are known; None where the text holds neither."""
    if not re.search(r"BOOT_IMAGE=|root=|initrd=|NVRM|kernel: |\[ {0,8}\d+\.\d+\]|\[[A-Z][a-z]{2} ", text):
        return None
    text = plain(text)
    line = _COMMAND_LINE.search(text)
    log = tuple(dict.fromkeys(_messages(text)))[:MOST_LINES]
    if line is None and not log:
        return None
    given = line[1].strip()[:4096] if line else None
    host = Host(kernel_command_line=given, iommu=(iommu_mode(given) if given else None) or _mode(log))
    return Machine(host=host, kernel_log=log, source=source)


def _messages(text: str) -> list[str]:
    """Return the lines of the kernel's log that are on our subjects, as they stand."""
    return [
        line.strip()[:LONGEST]
        for line in text.splitlines()
        if (_STAMP.search(line) or line.lstrip().startswith("NVRM:")) and _SUBJECT.search(line) and "NCCL" not in line
    ]


def _mode(log: tuple[str, ...]) -> Mode | None:
    return next((mode for pattern, mode in _MODES if any(re.search(pattern, line) for line in log)), None)

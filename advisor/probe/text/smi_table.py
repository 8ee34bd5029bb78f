"""Read the table that `nvidia-smi` prints without arguments: names, memory, load and compute mode of the GPUs."""

import re
from itertools import pairwise

from msgspec.structs import replace

from advisor.probe.text.paste import plain
from advisor.rules.machine import Gpu, Machine, Software
from advisor.rules.pci import pci_address

MIB = 2**20
MOST_GPUS = 512
WIDEST = 300  # characters of a row

_FIRST = re.compile(
    r"^.{0,40}?(?<!\S)(\d{1,3})  +(\S[^\n]{0,40}?) +(?:On|Off|N/A) +"
    r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s",
)
_SECOND = re.compile(
    r"(\d{1,7})MiB */ *(\d{1,7})MiB +"
    r"(?:(\d{1,3})%|N/A|ERR!) *(E\. \w+|Default|Prohibited)?"
)
_POWER = re.compile(r"(?<!\d)(\d{1,4})W */ *\d{1,4}W")
_VERSIONS = re.compile(r"Driver Version: (\d{1,4}(?:\.\d{1,4})+)(?: +CUDA Version: (\d{1,3}\.\d{1,2}))?")


def read_smi_table(text: str, source: str) -> Machine | None:
    """Build a machine of the GPUs in a table; None where the text holds none.

    The driver cuts long names; of those that it cut, the beginning is not kept.
    """
    if "MiB" not in text:
        return None
    lines = plain(text).splitlines()
    gpus: dict[int, Gpu] = {}
    for line, below in pairwise(lines):
        first, second = _FIRST.match(line), _SECOND.search(below[:WIDEST])
        if first and second and (index := int(first[1])) < MOST_GPUS:
            power = _POWER.search(below[: second.start()])
            gpu = _gpu(index, first, second)
            gpus.setdefault(index, replace(gpu, power=float(power[1])) if power else gpu)
    if not gpus:
        return None
    versions = _VERSIONS.search("\n".join(lines))
    software = Software(driver=versions[1], cuda_driver=versions[2]) if versions else Software()
    return Machine(gpus=tuple(gpu for _, gpu in sorted(gpus.items())), software=software, source=source)


def _gpu(index: int, first: re.Match[str], second: re.Match[str]) -> Gpu:
    name, mode = first[2].strip(), second[4]
    return Gpu(
        id=f"GPU{index}",
        index=index,
        name=None if name.endswith("..") else name,
        bus_id=pci_address(first[3]),
        memory=int(second[2]) * MIB,
        memory_used=int(second[1]) * MIB,
        utilization=int(second[3]) / 100 if second[3] else None,
        compute_mode={"E. Process": "Exclusive_Process", "E. Thread": "Exclusive_Thread"}.get(mode, mode),
    )

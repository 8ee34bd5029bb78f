"""Read what `nvidia-smi -L` prints: the GPUs with their UUIDs, and the MIG instances of each."""

import re

from msgspec.structs import replace

from advisor.probe.text.paste import plain
from advisor.rules.machine import Gpu, Machine, MigInstance

MOST_GPUS = 512
GB = 10**9

_GPU = r"GPU (?P<gpu>\d{1,3}): (?P<name>[^\n(]{1,60}(?:\([^U\n][^)\n]{0,20}\))?) ?\(UUID: (?P<uuid>GPU-[\w-]{1,60})\)"
_MIG = r"MIG (?P<profile>\d\S{0,12}\d{1,3}gb\S{0,8})[ \t]+Device[ \t]+\d{1,2}: \(UUID: (?P<part>MIG-[\w/-]{1,80})\)"
_ENTRY = re.compile(rf"^[ \t]*(?:{_GPU}|{_MIG})[ \t\r]*$", re.MULTILINE)


def read_smi_list(text: str, source: str) -> Machine | None:
    """Build a machine of the GPUs in a list; None where the text holds none."""
    if "(UUID: " not in text:
        return None
    gpus: dict[int, Gpu] = {}
    at: int | None = None
    for entry in _ENTRY.finditer(plain(text)):
        if entry["gpu"]:
            at = int(entry["gpu"]) if int(entry["gpu"]) < MOST_GPUS else None
            if at is not None:
                gpu = Gpu(id=f"GPU{at}", index=at, name=entry["name"].strip(), uuid=entry["uuid"])
                gpus.setdefault(at, gpu)
        elif at is not None:
            part = MigInstance(uuid=entry["part"], name=entry["profile"], memory=_memory(entry["profile"]))
            gpus[at] = replace(gpus[at], mig=(*(gpus[at].mig or ()), part))
    if not gpus:
        return None
    return Machine(gpus=tuple(gpu for _, gpu in sorted(gpus.items())), source=source)


def _memory(profile: str) -> int | None:
    """Return the bytes that a profile's name promises, 3g.20gb."""
    size = re.search(r"(\d{1,3})gb", profile)
    return int(size[1]) * GB if size else None

"""Read what `df /dev/shm` and `ls -l /dev/shm` print: its size, what is free, the files of NCCL and torch."""

import re

from advisor.probe.text.paste import plain
from advisor.rules.machine import Host, Machine, SharedSegment

MOST_FILES = 10_000
UNITS = {"B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

_SIZE = r"\d{1,15}(?:\.\d{1,3})?[BKMGT]?i?B?"
_ROW = re.compile(
    rf"^[ \t]*\S{{1,100}}[ \t]+({_SIZE})[ \t]+({_SIZE})[ \t]+({_SIZE})[ \t]+(?:\d{{1,3}}%|-)[ \t]+/dev/shm[ \t\r]*$",
    re.MULTILINE,
)
_HEAD = re.compile(r"\b(1|512|1024|1048576)([BKMG]?)-blocks\b")
_FILE = re.compile(
    rf"^[ \t]*-[rwxsStT-]{{9}}[.+@]?[ \t]+\d{{1,6}}[ \t]+\S+[ \t]+\S+[ \t]+({_SIZE})[ \t]+[^\n]{{5,40}}?[ \t]"
    r"(?:/dev/shm/)?((?:nccl-|torch_)\S{1,200})[ \t\r]*$",
    re.MULTILINE,
)


def read_shared_memory(text: str, source: str) -> Machine | None:
    """Build a machine of which only /dev/shm is known; None where the text tells nothing of it."""
    if "/dev/shm" not in text and "nccl-" not in text and "torch_" not in text:
        return None
    text = plain(text)
    row = _ROW.search(text)
    files = dict.fromkeys((name, _bytes(size, 1)) for size, name in _FILE.findall(text))
    if row is None and not files:
        return None
    head = _HEAD.search(text)
    block = int(head[1]) * UNITS[head[2] or "B"] if head else UNITS["K"]
    host = Host(shm=_bytes(row[1], block), shm_free=_bytes(row[3], block)) if row else Host()
    segments = tuple(SharedSegment(name=name, size=size) for name, size in files)[:MOST_FILES]
    return Machine(host=host, shared_segments=segments, source=source)


def _bytes(text: str, block: int) -> int:
    """Read `64M`, `4.0K`, or a number of blocks."""
    number = float(re.match(r"[\d.]+", text)[0])  # type: ignore[index]
    unit = text.lstrip("0123456789.")[:1]
    return int(number * (UNITS[unit] if unit else block))

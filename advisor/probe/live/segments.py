"""List the files of NCCL and torch in /dev/shm, and which of them a process has open."""

import os
from pathlib import Path

from advisor.executor.shared_memory import files_in_use
from advisor.probe.live.sysfs import ROOT, folders
from advisor.rules.machine import SharedSegment

PREFIXES = ("nccl-", "torch_")


def read_segments(root: Path = ROOT) -> tuple[SharedSegment, ...]:
    """List the files. Whether another user's is open stays unknown: the kernel shows us our own processes only."""
    place = root / "dev/shm"
    files = [
        (path, size, owner) for path in folders(place) if path.name.startswith(PREFIXES) for size, owner in _facts(path)
    ]
    used = files_in_use(place) if files else set()
    return tuple(
        SharedSegment(name=path.name, size=size, open=_is_open(str(path) in used, owner)) for path, size, owner in files
    )


def _facts(path: Path) -> list[tuple[int, int]]:
    """Return a file's size and owner; nothing where it is gone by now."""
    try:
        found = path.stat()
    except OSError:
        return []
    return [(found.st_size, found.st_uid)]


def _is_open(used: bool, owner: int) -> bool | None:
    all_seen = os.getuid() in (0, owner)
    return True if used else False if all_seen else None

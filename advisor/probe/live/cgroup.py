"""Find what a container or a batch job may use of the host: the limits of this process's control groups.

A limit of a group holds for all groups below it, so the lowest one on the way up counts. Inside a container the path in
/proc/self/cgroup often lies outside what is mounted; its missing folders are skipped, and the mounted root is the
container's own group.
"""

from collections.abc import Iterator
from pathlib import Path

from advisor.probe.live.sysfs import ROOT, read, read_int


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return how many processors' worth of time the groups allow (docker --cpus); None is no limit."""
    texts = [read(group / "cpu.max") for group in _groups(root, "")]
    texts += [f"{read(g / 'cpu.cfs_quota_us')} {read(g / 'cpu.cfs_period_us')}" for g in _groups(root, "cpu")]
    return min((quota for text in texts if (quota := _quota(text)) is not None), default=None)


def memory_limit(root: Path = ROOT) -> int | None:
    """Return the lowest memory limit in bytes (docker --memory); None is no limit."""
    limits = [read_int(group / file) for group, file, _ in _memory_groups(root)]  # "max" of version 2 is no number
    return min((limit for limit in limits if limit is not None), default=None)


def memory_free(root: Path = ROOT) -> int | None:
    """Return the bytes left below the tightest limit, droppable page cache counted as free; None is no limit."""
    free = [_free(group, limit, usage) for group, limit, usage in _memory_groups(root)]
    return min((left for left in free if left is not None), default=None)


def _free(group: Path, limit_file: str, usage_file: str) -> int | None:
    limit, used = read_int(group / limit_file), read_int(group / usage_file)
    if limit is None or used is None:
        return None
    stat = dict(line.split(maxsplit=1) for line in (read(group / "memory.stat") or "").splitlines() if " " in line)
    cache = int(stat.get("total_inactive_file", stat.get("inactive_file", "0")))
    return max(0, limit - max(0, used - cache))


def _memory_groups(root: Path) -> Iterator[tuple[Path, str, str]]:
    for group in _groups(root, ""):
        yield group, "memory.max", "memory.current"
    for group in _groups(root, "memory"):
        yield group, "memory.limit_in_bytes", "memory.usage_in_bytes"


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Give the folders of this process's group and of all above it; an empty controller asks for version 2."""
    for line in (read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controller
        group = mount / path.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(mount) and folder.is_dir())


def _quota(text: str | None) -> float | None:
    """Read "quota period" in microseconds; "max" (version 2) and -1 (version 1) are no limit."""
    quota, _, period = (text or "").partition(" ")
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return None
    return int(quota) / int(period)

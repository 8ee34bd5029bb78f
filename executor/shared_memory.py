"""Find which files of /dev/shm a process uses."""

from contextlib import suppress
from pathlib import Path


def files_in_use(shared_memory: Path) -> set[str]:
    """List the files there that any process has mapped or open, of those processes that we may look at."""
    used: set[str] = set()
    prefix = f"{shared_memory}/"
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        with suppress(OSError):
            for line in (process / "maps").read_text(errors="replace").splitlines():
                if prefix in line:
                    used.add(line[line.index(prefix) :].removesuffix(" (deleted)"))
            for link in (process / "fd").iterdir():
                with suppress(OSError):
                    used.add(str(link.readlink()))
    return used

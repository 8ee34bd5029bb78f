"""Read the one-value files that the kernel shows under /proc and /sys."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def read(path: Path) -> str | None:
    """Return a file's text without the white space around it; None if it is missing, forbidden or has no value now."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\0 \t\n")
    except OSError:  # `speed` of a network card without a cable answers "invalid argument"
        return None


def read_int(path: Path) -> int | None:
    text = read(path)
    try:
        return int(text) if text else None
    except ValueError:
        return None


def folders(path: Path) -> Iterator[Path]:
    """Give the entries of a folder in natural order, cpu2 before cpu10; none if it can't be listed."""
    try:
        entries = list(path.iterdir())
    except OSError:
        return
    yield from sorted(entries, key=lambda entry: (len(entry.name), entry.name))


def parse_ranges(text: str) -> tuple[int, ...]:
    """Read a kernel list such as "0-3,8"; what is no number is left out."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


def numa_node(device: Path) -> int | None:
    """Return the NUMA node of a device's folder; -1 is the kernel's word for not known.

    A virtio card sits one folder below its PCI device.
    """
    for folder in (device, device.resolve().parent):
        node = read_int(folder / "numa_node")
        if node is not None:
            return node if node >= 0 else None
    return None

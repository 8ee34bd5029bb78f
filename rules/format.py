"""Numbers as people read them: three significant digits and a unit, decimal as vendors print.

A positive number never becomes a zero: the unit shrinks with it.
"""

import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

UNKNOWN = "?"
_BYTES = (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
_BINARY = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))
_COUNTS = (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))
_SECONDS = (("d", 2 * 86400.0, 86400.0), ("h", 2 * 3600.0, 3600.0), ("min", 120.0, 60.0), ("s", 1.0, 1.0))
_SHORT_SECONDS = (("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))


def memory(size: float | None) -> str:
    """Format bytes: 208e9 is `208 GB`."""
    return UNKNOWN if size is None else _scaled(size, _BYTES, " ")


def bandwidth(bytes_per_second: float | None) -> str:
    """Format bytes per second: 478e9 is `478 GB/s`."""
    return UNKNOWN if bytes_per_second is None else f"{_scaled(bytes_per_second, _BYTES, ' ')}/s"


def bandwidth_range(low: float, high: float) -> str:
    """Format the slowest and the fastest of several: `10-12 GB/s`, or one value where they look the same."""
    first, last = bandwidth(low), bandwidth(high)
    if first == last:
        return last
    return f"{first.removesuffix(last.split()[1]).strip()}-{last}"


def binary(size: int) -> str:
    """Format bytes in the units that torch, the driver's tools and Docker use: `79.6 GiB`, `64 MiB`."""
    return _scaled(size, _BINARY, " ")


def count(number: float | None) -> str:
    """Format a count: 13e9 is `13B`. Whole numbers below 10 000 stay as they are."""
    if number is None:
        return UNKNOWN
    if abs(number) < 10_000 and number == int(number):
        return str(int(number))
    return _scaled(number, _COUNTS, "")


def seconds(duration: float | None) -> str:
    """Format a duration: `278 ms`, `1.9 s`, `12 min`."""
    if duration is None:
        return UNKNOWN
    unit, size = _time_unit(duration)
    return f"{_digits(duration / size)} {unit}"


def seconds_range(low: float, high: float) -> str:
    """Format a range in the unit and the decimals of its upper end: `260-310 ms`, `0.95-1.20 s`."""
    unit, size = _time_unit(high)
    decimals = max(0, 2 - math.floor(math.log10(high / size))) if high > 0 else 0
    first, last = f"{low / size:.{decimals}f}", f"{high / size:.{decimals}f}"
    if first == last or (low > 0 and float(first) == 0):
        first, last = _digits(low / size), _digits(high / size)
    return f"{last} {unit}" if first == last else f"{first}-{last} {unit}"


def memory_column(sizes: Sequence[float]) -> list[str]:
    """Format bytes that stand below each other: the unit and the decimals that suit the largest, for all."""
    unit, size = next(((u, s) for u, s in _BYTES if max(sizes) >= s), _BYTES[-1])
    return _column(sizes, unit, size)


def seconds_column(durations: Sequence[float]) -> list[str]:
    """Format durations that stand below each other: the unit and the decimals that suit the longest, for all."""
    return _column(durations, *_time_unit(max(durations)))


def percent(fraction: float, *, signed: bool = False) -> str:
    """Format a fraction: 0.034 is `3.4 %`."""
    value = fraction * 100
    digits = f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"
    return f"{'+' if signed and value > 0 else ''}{digits} %"


def plural(number: int, noun: str) -> str:
    """Format a count with its noun: `1 rank`, `8 ranks`, `2 processes`."""
    ending = "es" if noun.endswith("s") else "s"
    return f"{count(number)} {noun}{'' if number == 1 else ending}"


def cpu_list(cpus: Iterable[int]) -> str:
    """Format processor numbers as Linux lists them: `0-31,64-95`, with a stride where it repeats, `0-62:2`."""
    numbers = sorted(set(cpus))
    parts, start = [], 0
    while start < len(numbers):
        end, step = _run(numbers, start)
        first, last = numbers[start], numbers[end]
        parts.append(str(first) if first == last else f"{first}-{last}" + (f":{step}" if step > 1 else ""))
        start = end + 1
    return ",".join(parts)


def ids(names: Sequence[str]) -> str:
    """Format device names, those that differ only in their last number as one: `GPU0-3,6`, `mlx5_0-7, mlx5_bond_0`."""
    parts = []
    for (prefix, number), same in folded([_split(name) for name in names], lambda split: split[0]):
        parts.append(prefix if number is None else prefix + cpu_list(n for _, n in same if n is not None))
    return ", ".join(parts)


def folded(values: Iterable[T], key: Callable[[T], Hashable]) -> list[tuple[T, list[T]]]:
    """Group values that look the same, in the order of their first; each group comes with its first value."""
    groups: dict[Hashable, list[T]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return [(group[0], group) for group in groups.values()]


def _column(values: Sequence[float], unit: str, size: float) -> list[str]:
    decimals = 1 if max(values) >= 10 * size else 2
    least = 10**-decimals
    return [
        f"<{least:g} {unit}" if 0 < value / size < least / 2 else f"{value / size:.{decimals}f} {unit}"
        for value in values
    ]


def _split(name: str) -> tuple[str, int | None]:
    """Split a name before its last number; a leading zero belongs to the name."""
    match = re.fullmatch(r"(.*?)(0|[1-9]\d*)", name)
    return (match[1], int(match[2])) if match else (name, None)


def _run(numbers: list[int], start: int) -> tuple[int, int]:
    """Return the last index of the longest regular run from `start`, and its step. Steps above 1 need four members."""
    if start + 1 == len(numbers):
        return start, 1
    step = numbers[start + 1] - numbers[start]
    end = start + 1
    while end + 1 < len(numbers) and numbers[end + 1] - numbers[end] == step:
        end += 1
    if step > 1 and end - start < 3:
        return start, 1
    return end, step


def _time_unit(duration: float) -> tuple[str, float]:
    for unit, least, size in _SECONDS:
        if float(f"{duration:.3g}") >= least:
            return unit, size
    for unit, size in _SHORT_SECONDS:
        if float(f"{duration:.3g}") >= size:
            return unit, size
    return ("s", 1.0) if duration <= 0 else ("ns", 1e-9)


def _scaled(number: float, units: tuple[tuple[str, float], ...], gap: str) -> str:
    rounded = abs(float(f"{number:.3g}"))  # 999.7e6 is 1 GB, not 1000 MB
    for unit, size in units:
        if rounded >= size:
            return f"{_digits(number / size)}{gap}{unit}"
    return f"{_digits(number)}{gap}{units[-1][0]}"


def _digits(value: float) -> str:
    """Round to three significant digits without an exponent."""
    rounded = float(f"{value:.3g}")
    if rounded == int(rounded):
        return str(int(rounded))
    return f"{rounded:.12f}".rstrip("0").rstrip(".") if abs(rounded) < 1 else f"{rounded:.3g}"

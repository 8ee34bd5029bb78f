"""Compare version numbers as software prints them: 2.28.9, 2.11.0+cu130, 580.159.04."""

import re


def older(version: str | None, than: str) -> bool:
    """Say whether a version is known and lies before another; what follows the digits and dots does not count."""
    return version is not None and bool(_numbers(version)) and _numbers(version) < _numbers(than)


def at_least(version: str | None, least: str) -> bool:
    """Say whether a version is known and is another or lies behind it."""
    return version is not None and _numbers(version) >= _numbers(least)


def major(version: str | None) -> int | None:
    numbers = _numbers(version or "")
    return numbers[0] if numbers else None


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version.strip())
    return tuple(int(number) for number in found[0].split(".")) if found else ()

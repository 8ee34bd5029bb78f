"""The lines of source that findings point to."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from advisor.rules.plan import Finding

Place = tuple[str, int]
Quotes = Mapping[Place, str]


def quotes(findings: Iterable[Finding]) -> Quotes:
    """Return the source line at each place; a file that can't be read any more has none."""
    found: dict[Place, str] = {}
    read: dict[str, list[str]] = {}
    for finding in findings:
        if finding.file is None or finding.line is None:
            continue
        if finding.file not in read:
            read[finding.file] = _lines(Path(finding.file))
        if 0 < finding.line <= len(read[finding.file]):
            found[finding.file, finding.line] = read[finding.file][finding.line - 1]
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode("utf-8", "replace").split("\n")
    except OSError:
        return []

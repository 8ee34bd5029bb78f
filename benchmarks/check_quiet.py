"""Check code that is taken to be correct: python benchmarks/check_quiet.py [--show SEVERITY] PATH...

Runs `advisor check` over each file *.py of the folders and prints what it says, errors and warnings with their line of
source. Each of them is either a mistake in that code, which the table in docs/check.md then lists by file, line and
code, or a false alarm: the figure is the false ones per 1,000 lines. All files count, those without torch as well. The
last line is a JSON object.
"""

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from advisor.executor.check import check_script
from advisor.executor.quote import quotes
from advisor.rules.errors import AdvisorError
from advisor.rules.plan import Finding

ALARMS = ("error", "warning")
PAGE = Path(__file__).parents[1] / "docs" / "check.md"
ROW = re.compile(r"^\| [^|]+ \| `(.+):(\d+)` \| ([A-Z]+\d+) \|", re.MULTILINE)
SEVERITIES = ("error", "warning", "info")


class Sum(NamedTuple):
    files: int
    lines: int
    unread: list[str]
    crashes: list[str]
    findings: dict[tuple[str, str | None, int | None], Finding]
    seconds: float
    slowest: tuple[float, str]


def files_of(paths: Iterable[str]) -> Iterator[Path]:
    """Yield the files given, and those below the folders given."""
    for path in map(Path, paths):
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def look(paths: Iterable[str]) -> Sum:
    files, lines, unread, crashes, findings, slowest = 0, 0, list[str](), list[str](), {}, (0.0, "")
    began = time.perf_counter()
    for path in files_of(paths):
        start = time.perf_counter()
        try:
            checked = check_script(str(path))
        except AdvisorError as error:
            unread.append(error.message)
            continue
        except Exception as error:
            crashes.append(f"{path}: {type(error).__name__}: {error}")
            continue
        slowest = max(slowest, (time.perf_counter() - start, str(path)))
        files += 1
        lines += path.read_bytes().count(b"\n")
        findings |= {(found.code, found.file, found.line): found for found in checked.findings}
    return Sum(files, lines, unread, crashes, findings, time.perf_counter() - began, slowest)


def known_true() -> list[tuple[str, int, str]]:
    """Return end of the path, line and code of the alarms that were looked at and are right."""
    return [(path, int(line), code) for path, line, code in ROW.findall(PAGE.read_text())]


def main() -> None:
    parser = argparse.ArgumentParser(description="Check code that is taken to be correct.")
    parser.add_argument("--show", default="warning", choices=SEVERITIES, help="the least severity to print")
    parser.add_argument("paths", metavar="PATH", nargs="+")
    args = parser.parse_args()
    looked = look(args.paths)
    findings = sorted(looked.findings.values(), key=lambda finding: (finding.file or "", finding.line or 0))
    alarms = [finding for finding in findings if finding.severity in ALARMS]
    right = known_true()
    true = {
        id(finding)
        for finding in alarms
        for path, line, code in right
        if (finding.file or "").endswith(path) and (finding.line, finding.code) == (line, code)
    }
    lines = quotes(findings)
    for finding in findings:
        if SEVERITIES.index(finding.severity) <= SEVERITIES.index(args.show):
            word = "true" if id(finding) in true else finding.severity
            print(f"{finding.file}:{finding.line}: {word} {finding.code} {finding.name}")
            print(f"    {lines.get((finding.file or '', finding.line or 0), '').strip()[:110]}")
    for why in looked.unread:
        print(f"not read: {why}")
    for why in looked.crashes:
        print(f"CRASH: {why}")
    codes = Counter(finding.code for finding in findings)
    print("codes: " + ", ".join(f"{code} {number}" for code, number in codes.most_common()))
    print(f"slowest: {looked.slowest[0]:.2f} s, {looked.slowest[1]}")
    false = len(alarms) - len(true)
    result = {
        "files": looked.files,
        "lines": looked.lines,
        "unread": len(looked.unread),
        "crashes": len(looked.crashes),
        "true": len(true),
        "false": false,
        "false_per_1000_lines": round(1000 * false / max(looked.lines, 1), 4),
        "notes": len(findings) - len(alarms),
        "seconds": round(looked.seconds, 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

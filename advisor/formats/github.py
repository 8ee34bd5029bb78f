"""Findings as annotations of GitHub Actions: one workflow command a line.

https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""

from collections.abc import Iterable

from advisor.rules.plan import Finding, Severity

COMMANDS: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "notice"}
IN_TEXT = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
IN_PROPERTIES = IN_TEXT | str.maketrans({":": "%3A", ",": "%2C"})


def annotations(findings: Iterable[Finding]) -> str:
    """Spell each finding as a line that GitHub shows beside the source."""
    return "".join(f"{_annotation(finding)}\n" for finding in findings)


def _annotation(finding: Finding) -> str:
    place = {"file": finding.file, "line": finding.line, "title": f"{finding.code} {finding.name}"}
    properties = ",".join(
        f"{name}={str(value).translate(IN_PROPERTIES)}" for name, value in place.items() if value is not None
    )
    text = f"{finding.message}\n{finding.remedy}"
    return f"::{COMMANDS[finding.severity]} {properties}::{text.translate(IN_TEXT)}"

"""Findings as SARIF 2.1.0, which GitHub code scanning and editors read.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

import msgspec

from advisor import __version__
from advisor.rules.plan import Finding, Severity
from advisor.rules.rule import Rule

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}


def sarif(findings: Sequence[Finding], rules: Iterable[Rule]) -> bytes:
    """Spell the findings as one run of one tool; `rules` are described where they have found something."""
    found = {finding.code for finding in findings}
    described = [rule for rule in rules if rule.code in found]
    places = {rule.code: place for place, rule in enumerate(described)}
    driver = {"name": "advisor", "version": __version__, "rules": [_rule(rule) for rule in described]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, places) for finding in findings],
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _rule(rule: Rule) -> dict[str, Any]:
    first, _, rest = rule.page.strip().partition("\n")
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": first},
        "help": {"text": rest.strip() or first, "markdown": rest.strip() or first},
    }


def _result(finding: Finding, places: dict[str, int]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "level": LEVELS[finding.severity],
        "message": {"text": f"{finding.message}\n{finding.remedy}"},
    }
    if finding.code in places:
        result["ruleIndex"] = places[finding.code]
    if finding.file is not None:
        location: dict[str, Any] = {"artifactLocation": _artifact(finding.file)}
        if finding.line is not None:
            location["region"] = {"startLine": finding.line}
        result["locations"] = [{"physicalLocation": location}]
    return result


def _artifact(file: str) -> dict[str, str]:
    """Name a file as a URI, relative to the root of the sources unless it is an absolute path."""
    path = PurePath(file)
    if path.is_absolute():
        return {"uri": path.as_uri()}
    return {"uri": quote(path.as_posix()), "uriBaseId": "%SRCROOT%"}

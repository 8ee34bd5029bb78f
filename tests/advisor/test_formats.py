"""Findings for other programs: GitHub's workflow commands and SARIF."""

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.formats.github import annotations
from advisor.formats.sarif import sarif
from advisor.rules.catalog import RULES
from advisor.rules.plan import Finding, Severity

RULE = RULES[0]
LEVELS = {"none", "note", "warning", "error"}  # of the standard


def finding(severity: Severity = "error", file: str | None = "src/train it.py", line: int | None = 7) -> Finding:
    return Finding(
        code=RULE.code,
        name=RULE.name,
        severity=severity,
        message="100 %: a, b",
        remedy="do\nthat",
        file=file,
        line=line,
    )


def test_an_annotation_is_one_line_with_the_place_escaped() -> None:
    assert annotations([finding(file="a,b:c.py")]) == (
        f"::error file=a%2Cb%3Ac.py,line=7,title={RULE.code} {RULE.name}::100 %25: a, b%0Ado%0Athat\n"
    )
    assert annotations([finding("info", file=None, line=None)]).startswith(f"::notice title={RULE.code}")
    assert annotations([]) == ""


def document(*findings: Finding) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sarif(findings, RULES))
    return found


def test_sarif_has_what_the_standard_requires() -> None:
    found = document(finding(), finding("warning"), finding("info", file=None, line=None))
    assert found["version"] == "2.1.0"
    assert found["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = found["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "advisor"
    assert [rule["id"] for rule in driver["rules"]] == [RULE.code]
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"]
        assert rule["help"]["text"]
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    assert len(run["results"]) == 3
    for result in run["results"]:
        assert result["message"]["text"]
        assert result["level"] in LEVELS
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        for location in result.get("locations", ()):
            assert location["physicalLocation"]["artifactLocation"]["uri"]
            assert location["physicalLocation"]["region"]["startLine"] >= 1


@pytest.mark.parametrize(
    ("file", "artifact"),
    [
        ("src/train it.py", {"uri": "src/train%20it.py", "uriBaseId": "%SRCROOT%"}),
        (str(Path("/home/me/train.py")), {"uri": "file:///home/me/train.py"}),
    ],
)
def test_a_file_is_named_as_a_uri(file: str, artifact: dict[str, str]) -> None:
    (result,) = document(finding(file=file))["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == artifact


def test_no_findings_are_a_run_without_results() -> None:
    assert document()["runs"][0]["results"] == []

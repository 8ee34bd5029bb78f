"""Judge the findings on a script from practice, a case of kind C, and on its clean twin."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from advisor.executor.check import check_script
from advisor.rules.plan import Finding

ALARMS = ("error", "warning")
SCRIPT, TWIN = "script", "clean_script"


class Told(NamedTuple):
    """What the check says of a case. `holds` is None where only a run could show the mistake, or there is none."""

    line: str
    holds: bool | None
    found: str
    findings: tuple[Finding, ...]
    false_alarms: tuple[Finding, ...]


def judge_script(case: Mapping[str, Any], meanings: Mapping[str, Sequence[str]]) -> Told:
    """Compare with `expected_finding`: its line, or one also accepted, and a rule that means the same.

    `meanings` names the rules by the name of what a case expects; of what it does not list, any rule is taken. A
    finding of severity info counts where the case expects no more than that.
    """
    expected = case.get("expected_finding")
    found = findings_of(case[SCRIPT])
    alarms = [finding for finding in findings_of(case[TWIN]) if finding.severity in ALARMS] if TWIN in case else []
    if not expected:
        alarms += [finding for finding in found if finding.severity in ALARMS]
        return Told("no finding", None, "", found, tuple(alarms))
    lines = {expected["line"], *(expected.get("also_accept_lines") or ())}
    enough = ("info", *ALARMS) if expected["severity"] == "info" else ALARMS
    codes = meanings.get(expected["rule"])
    hits = [f for f in found if f.line in lines and f.severity in enough and (codes is None or f.code in codes)]
    seen = ", ".join(f"{finding.severity} {finding.code}" for finding in hits) or "nothing there"
    line = f"{expected['severity']} {expected['rule']} in line {expected['line']}"
    holds = bool(hits) if hits or expected.get("detect") != "runtime" else None
    return Told(line, holds, seen, found, tuple(alarms))


def findings_of(text: str) -> tuple[Finding, ...]:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(text)
        return check_script(script).findings

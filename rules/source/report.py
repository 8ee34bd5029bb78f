"""How rules word what they find in a script."""

from typing import Any

from advisor.rules.plan import Finding, Severity
from advisor.rules.rule import Case
from advisor.rules.source.value import Event, Guard, Loop


def found(
    case: Case,
    rule: tuple[str, str],
    severity: Severity,
    at: Event | Guard | Loop | tuple[str, int],
    *,
    happens: str,
    remedy: str,
    **facts: Any,
) -> Finding:
    """Make a finding that quotes its line; `happens` says what the line does to the training."""
    assert case.source is not None
    file, line = at if isinstance(at, tuple) else (at.file, at.line)
    return Finding(
        code=rule[0],
        name=rule[1],
        severity=severity,
        message=f"`{case.source.text(file, line)}`: {happens}",
        facts=facts,
        remedy=remedy,
        file=file,
        line=line,
    )

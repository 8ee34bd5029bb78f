"""How rules word what they find in a script."""

import ast
from typing import Any

from advisor.rules.plan import Finding, Severity
from advisor.rules.rule import Case
from advisor.rules.source.source import Source
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
        facts=facts | _columns(case.source, at),
        remedy=remedy,
        file=file,
        line=line,
    )


def _columns(source: Source, at: Event | Guard | Loop | tuple[str, int]) -> dict[str, int]:
    """Return where in its line the code begins and ends, in characters from 0; of a longer one the first line's end."""
    if isinstance(at, tuple) or not isinstance(at.node, ast.expr):
        return {}
    line = source.line(at.file, at.line)
    end = at.node.end_col_offset if at.node.end_lineno == at.line else None
    first, last = (len(line.encode()[:column].decode(errors="ignore")) for column in (at.node.col_offset, end))
    return {"column": first, "end_column": last}

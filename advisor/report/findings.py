"""Findings as text: severity, code, one sentence, and what to type."""

from collections.abc import Container, Sequence

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from advisor.report.layout import GAP, PROSE_WIDTH, section, sentence
from advisor.rules.plan import Finding, Severity

SEVERITIES: dict[Severity, str] = {"error": "bold red", "warning": "yellow", "info": "cyan"}  # the worst first
NOUNS: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}


def findings_section(findings: Sequence[Finding], answered: Container[str] = ()) -> RenderableType | None:
    """Set findings under a heading, the worst first; None when there are none.

    The remedies of the codes in `answered` are left out: the report already shows them in full.
    """
    if not findings:
        return None
    table = Table.grid(padding=(0, GAP, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in in_order(findings):
        table.add_row(
            Text(finding.severity, style=SEVERITIES[finding.severity]),
            _finding(finding, remedy=finding.code not in answered),
        )
    return section("Findings", Constrain(table, PROSE_WIDTH))


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Sort by severity, then place in the file, then code."""
    worst_first = list(SEVERITIES)
    return sorted(findings, key=lambda f: (worst_first.index(f.severity), f.file or "", f.line or 0, f.code))


def _finding(finding: Finding, *, remedy: bool) -> RenderableType:
    title = Text.assemble((finding.code, "bold"), " ", (finding.name, "dim"))
    if finding.file is not None:
        place = finding.file if finding.line is None else f"{finding.file}:{finding.line}"
        title = Text.assemble((place, "bold"), " ", title)
    message = sentence(finding.message)
    if not remedy:
        return Group(title, message)
    arrow = Table.grid(padding=(0, 1, 0, 0))
    arrow.add_row(Text("->", style="green"), sentence(finding.remedy))
    return Group(title, message, arrow)

"""Findings in scripts as text: each with its line of source, what happens, and the corrected lines."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from advisor.checked import Report
from advisor.fix.fixable import FIXABLE
from advisor.report.findings import NOUNS, SEVERITIES
from advisor.report.layout import INDENT, PROSE_WIDTH, Command, indented, one_line, prose, section, stack
from advisor.rules.format import plural
from advisor.rules.plan import Finding

CUT = "..."
ARROW = "-> "


class Quote:
    """A line of source with its number, what is meant underlined; cut where the terminal is too narrow for it."""

    def __init__(self, number: int, source: str, column: int | None, end: int | None) -> None:
        code = source.expandtabs(1).rstrip()
        start = len(code) - len(code.lstrip())
        self.number, self.code = str(number), code.strip()
        self.first = min(max((column if column is not None else start) - start, 0), len(self.code))
        self.last = min(max((end or len(code)) - start, self.first + 1), max(len(self.code), self.first + 1))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        gutter = f"{self.number} | "
        room = options.max_width - len(gutter)
        code, skipped = self.code, 0
        if len(code) > room:
            skipped = max(0, min(self.first - room // 3, len(code) - room))
            code = code[skipped : skipped + room]
            code = (CUT + code[len(CUT) :] if skipped else code)[:room]
            if skipped + room < len(self.code):
                code = code[: room - len(CUT)] + CUT
        marked = max(1, min(self.last - skipped, len(code)) - (self.first - skipped))
        yield Text.assemble((gutter, "dim"), code, no_wrap=True, overflow="ignore")
        yield Text.assemble(
            (f"{'':{len(self.number)}} | ", "dim"),
            " " * (self.first - skipped),
            ("^" * marked, "bold green"),
            no_wrap=True,
            overflow="ignore",
        )


class Remedy:
    """What to write instead: lines of code as they are, behind an arrow."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(min(options.max_width, PROSE_WIDTH) - len(ARROW), 1)
        for number, line in enumerate(self.text.splitlines()):
            mark = (ARROW, "green") if number == 0 else (" " * len(ARROW), "")
            first, *rest = Text(line).wrap(console, room) or [Text()]
            yield Text.assemble(mark, first, no_wrap=True, overflow="ignore")
            for part in rest:
                yield Text.assemble(" " * (len(ARROW) + INDENT), part, no_wrap=True, overflow="ignore")


def check_report(report: Report, lines: Mapping[tuple[str, int], str], *, again: str) -> RenderableType:
    """Show the findings in the order of the files, then how many there are and what can be done about them.

    `lines` is the source by file and line, `again` the command that gives this answer once more.
    """
    blocks = [_finding(finding, lines) for finding in in_file_order(report.findings)]
    unread = [prose(f"{one.script}: {one.why}") for one in report.unread]
    return stack(*blocks, section("Not read", *unread) if unread else None, Group(*_summary(report, again)))


def check_verdict(report: Report) -> Text:
    """Say in one line what was found, and where the first error is."""
    worst = _worst(report)
    line = _counted(report)
    if worst is not None:
        line.append(f": {worst.code} {worst.name} at {_place(worst)}")
    if report.unread:
        line.append(f"; {plural(len(report.unread), 'file')} not read")
    return one_line(line)


def in_file_order(findings: Sequence[Finding]) -> list[Finding]:
    """Sort by file in the order given, then by line."""
    files = {finding.file: None for finding in findings}
    order = {file: place for place, file in enumerate(files)}
    return sorted(findings, key=lambda finding: (order[finding.file], finding.line or 0, finding.code))


def diff_report(diffs: Sequence[str], fixed: int, unfixed: int) -> RenderableType:
    """Show what would be changed, as a unified diff, and how many findings that mends."""
    text = Text(no_wrap=True, overflow="ignore")
    for line in (line for diff in diffs for line in diff.splitlines()):
        text.append(line, _style(line)).append("\n")
    left = f", {unfixed} left to you" if unfixed else ""
    summary = prose(f"{plural(fixed, 'finding')} would be fixed in {plural(len(diffs), 'file')}{left}")
    return Group(text, summary) if diffs else prose("nothing to fix by itself")


def _finding(finding: Finding, lines: Mapping[tuple[str, int], str]) -> RenderableType:
    place = _place(finding)
    title = Text.assemble(
        (f"{place} " if place else "", "bold"),
        (finding.severity, SEVERITIES[finding.severity]),
        f" {finding.code} ",
        (finding.name, "dim"),
    )
    body: list[RenderableType] = []
    source = lines.get((finding.file or "", finding.line or 0), "")
    if source.strip() and finding.line is not None:
        body.append(Quote(finding.line, source, finding.facts.get("column"), finding.facts.get("end_column")))
    message = finding.message.removeprefix(f"`{source.strip()}`: ")  # it is quoted above
    return Group(title, *map(indented, (*body, prose(message), Remedy(finding.remedy))))


def _place(finding: Finding) -> str:
    return ":".join(str(part) for part in (finding.file, finding.line) if part is not None)


def _summary(report: Report, again: str) -> Iterator[RenderableType]:
    if report.fixed:
        yield prose(f"{plural(report.fixed, 'finding')} fixed", "green")
    yield _counted(report)
    fixable = sum(finding.name in FIXABLE for finding in report.findings)
    if fixable and not report.fixed:
        yield Text(f"{fixable} of them may be corrected by:")
        yield indented(Command(f"{again} --fix"))
    worst = _worst(report)
    if worst is not None:
        yield Text(f"more about one, with sources: advisor explain {worst.code}", style="dim")


def _worst(report: Report) -> Finding | None:
    order = list(SEVERITIES)
    return min(in_file_order(report.findings), key=lambda finding: order.index(finding.severity), default=None)


def _counted(report: Report) -> Text:
    """Say `train.py (ddp): 2 errors, 1 warning`."""
    where = f"{report.script} ({report.kind})" if report.script else plural(len(report.scripts), "script")
    counts = Counter(finding.severity for finding in report.findings)
    text = Text(f"{where}: ")
    for severity, style in SEVERITIES.items():
        if counts[severity]:
            text.append(", " if len(text) > len(where) + 2 else "").append(
                plural(counts[severity], NOUNS[severity]), style
            )
    return text if report.findings else text.append("nothing found", "green")


def _style(line: str) -> str:
    if line.startswith(("---", "+++")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")

"""How findings read, on a machine, on a plan and in a script."""

from advisor.report.console import render
from advisor.report.findings import findings_section
from advisor.rules.plan import Finding, Severity


def finding(code: str, severity: Severity, file: str | None = None, line: int | None = None) -> Finding:
    return Finding(
        code=code,
        name="ring-leaves-the-islands",
        severity=severity,
        message=f"{code}: 10 GB/s between sockets",
        remedy="--gpus 4",
        file=file,
        line=line,
    )


def text_of(*findings: Finding, answered: tuple[str, ...] = (), width: int = 80) -> str:
    section = findings_section(findings, answered)
    return "" if section is None else render(section, width=width, colour=False)


def test_no_findings_take_no_space() -> None:
    assert findings_section(()) is None


def test_a_finding_has_severity_code_sentence_and_remedy() -> None:
    assert text_of(finding("NET101", "warning")) == (
        "Findings\n"
        "  warning  NET101 ring-leaves-the-islands\n"
        "           NET101: 10 GB/s between sockets\n"
        "           -> --gpus 4\n"
    )


def test_the_worst_comes_first_then_the_order_of_the_file() -> None:
    text = text_of(
        finding("ENV101", "info"),
        finding("PAR201", "error", "train.py", 30),
        finding("PAR202", "error", "train.py", 7),
    )
    assert text.index("train.py:7 PAR202") < text.index("train.py:30 PAR201") < text.index("ENV101")


def test_a_remedy_shown_elsewhere_is_left_out() -> None:
    text = text_of(finding("NET101", "error"), finding("NET102", "error"), answered=("NET101",))
    assert text.count("->") == 1


def test_a_number_stays_with_its_unit_at_any_width() -> None:
    for width in range(24, 60):
        lines = text_of(finding("NET101", "info"), width=width).splitlines()
        assert any("10 GB/s" in line for line in lines)

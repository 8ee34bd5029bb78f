"""`advisor check SCRIPT...`: mistakes of distributed training in scripts, by line; nothing of them is executed."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from advisor.answer import Answer, Proposal
from advisor.arguments import add_output, names
from advisor.checked import Diff, Report, Script, Unread
from advisor.commands.rules import add_rules, known_rules, rules_of
from advisor.rules.errors import AdvisorError
from advisor.rules.plan import Finding

if TYPE_CHECKING:
    from rich.console import RenderableType

    from advisor.executor.check import Checked
    from advisor.executor.rewrite import Change
    from advisor.fix.fixes import Fixed

    Fixer = Callable[[bytes, Iterable[Finding], str], Fixed]

FORMATS = ("text", "github", "sarif")


class Looked(NamedTuple):
    """All scripts of a command, as they are now."""

    checked: "Sequence[Checked]"
    findings: tuple[Finding, ...]
    unread: tuple[Unread, ...]


def add_check(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "check",
        help="mistakes of distributed training in scripts, by line",
        description="Finds what makes distributed training hang, crash, be slow or be silently wrong, in scripts and "
        "in the modules beside them that they import. Reads them only: nothing is imported or executed. A comment "
        "`# advisor: ignore[SCR101]` on a line silences a rule there, `# advisor: ignore` all of them.",
        allow_abbrev=False,
    )
    parser.add_argument("scripts", metavar="SCRIPT", nargs="+", help="training scripts")
    parser.add_argument(
        "--select",
        dest="rules",
        type=names,
        action="extend",
        default=[],
        metavar="CODE,...",
        help="look for these only, by code, name or group (SCR); may be repeated",
    )
    add_rules(parser)
    fixing = parser.add_argument_group("correcting")
    fixing.add_argument(
        "--fix", action="store_true", help="show what can be corrected safely, and ask whether to do it"
    )
    fixing.add_argument("--yes", action="store_true", help="with --fix: do it without asking")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="text",
        help="what is printed: text, annotations of GitHub Actions, or SARIF 2.1.0 for code scanning",
    )
    add_output(parser, (".sarif",))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> Answer:
    """Check the scripts; with --fix propose, or make, what can be corrected."""
    if args.yes and not args.fix:
        raise AdvisorError("--yes answers what --fix asks", "add --fix, or leave it out")
    looked = _look(args)
    if not args.fix:
        return _answer(args, looked)
    changes, fixed = _changes(looked)
    if not changes:
        return _answer(args, looked)
    proposal = Proposal("Write these changes?", agreed=args.yes, do=lambda: _rewritten(args, changes, fixed))
    if args.yes and (args.json or args.quiet or args.format != "text"):  # one answer, about what it has become
        return proposal.do()
    return _proposed(args, looked, changes, fixed, proposal)


def _look(args: argparse.Namespace) -> Looked:
    """Check each script; one that can't be read does not keep the others from being checked."""
    from advisor.executor.check import check_script

    rules = rules_of(args)
    checked, unread = [], []
    for script in args.scripts:
        try:
            checked.append(check_script(script, rules))
        except AdvisorError as error:
            if len(args.scripts) == 1:
                raise
            unread.append(Unread(script=script, why=error.message))
    found = {_key(finding): finding for one in checked for finding in one.findings}  # modules may be shared
    return Looked(checked, tuple(found.values()), tuple(unread))


def _key(finding: Finding) -> tuple[str, str | None, int | None]:
    return finding.code, finding.file, finding.line


def _changes(looked: Looked) -> "tuple[list[Change], int]":
    """Return the files as they should be, and how many findings that mends."""
    fix = _fixer()
    from advisor.executor.rewrite import Change, content_of

    kinds: dict[str, str] = {}
    for one in looked.checked:
        for finding in one.findings:
            kinds.setdefault(finding.file or "", one.kind)
    changes, fixed = [], 0
    for file, kind in kinds.items():
        before = content_of(file)
        after = fix(before, [finding for finding in looked.findings if finding.file == file], kind)
        if after.findings and after.content != before:
            changes.append(Change(file=file, before=before, after=after.content))
            fixed += len(after.findings)
    return changes, fixed


def _fixer() -> "Fixer":
    try:
        from advisor.fix.fixes import fix
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "libcst":
            raise
        hint = "pip install 'topology-advisor[fix]', or from a checkout: pip install '.[fix]'"
        raise AdvisorError("--fix edits with LibCST, which is not installed", hint) from error
    return fix


def _rewritten(args: argparse.Namespace, changes: "Sequence[Change]", fixed: int) -> Answer:
    """Write the changes, and say what the scripts are now."""
    from advisor.executor.rewrite import rewrite

    for change in changes:
        rewrite(change)
    return _answer(args, _look(args), changes, fixed)


def _proposed(
    args: argparse.Namespace, looked: Looked, changes: "Sequence[Change]", fixed: int, proposal: Proposal
) -> Answer:
    """Show what would be changed, and ask."""
    left = len(looked.findings) - fixed

    def report() -> "RenderableType":
        from advisor.report.check import diff_report

        return diff_report([change.diff for change in changes], fixed, left)

    answer = _answer(args, looked, changes)
    asked = None if args.json else proposal
    return answer._replace(report=report, plain=None, proposal=asked)


def _answer(args: argparse.Namespace, looked: Looked, changes: "Sequence[Change]" = (), fixed: int = 0) -> Answer:
    from advisor.executor.quote import quotes

    findings = looked.findings
    scripts = tuple(Script(script=one.script, kind=one.kind) for one in looked.checked)
    only = scripts[0] if len(args.scripts) == 1 else None
    document = Report(
        script=only.script if only else None,
        kind=only.kind if only else None,
        findings=findings,
        scripts=scripts,
        unread=looked.unread,
        fixed=fixed,
        fixes=tuple(Diff(file=change.file, diff=change.diff) for change in changes),
    )

    def report() -> "RenderableType":
        from advisor.report.check import check_report

        return check_report(document, quotes(findings), again=args.again)

    def verdict() -> "RenderableType":
        from advisor.report.check import check_verdict

        return check_verdict(document)

    def as_sarif() -> bytes:
        from advisor.formats.sarif import sarif

        return sarif(findings, known_rules(args.rules_dir))

    def as_annotations() -> str:
        from advisor.formats.github import annotations

        return annotations(findings)

    plain = {"github": as_annotations, "sarif": lambda: as_sarif().decode()}.get(args.format)
    code = 2 if looked.unread else int(document.errors)
    return Answer(code, document, report, verdict, files={".sarif": as_sarif}, plain=plain)

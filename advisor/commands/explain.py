"""`advisor explain CODE`: the page of one rule."""

import argparse
from typing import TYPE_CHECKING

from advisor.answer import Answer
from advisor.arguments import add_output
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Value

if TYPE_CHECKING:
    from rich.console import RenderableType


CHECKLIST = "checklist"


class Page(Value, frozen=True, kw_only=True):
    version: int = 1
    code: str
    name: str
    page: str


def add_explain(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser("explain", help="the page of one rule", allow_abbrev=False)
    parser.add_argument("code", metavar="CODE", help="as findings show it: MEM101; or checklist")
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> Answer:
    """Find the rule by its code or its name."""
    from advisor.rules.catalog import RULES

    if args.code.lower() == CHECKLIST:
        return _checklist()
    rule = next((rule for rule in RULES if args.code.lower() in (rule.code.lower(), rule.name)), None)
    if rule is None:
        known = ", ".join(rule.code for rule in RULES)
        raise AdvisorError(f"there is no rule {args.code}", f"the rules are: {known}")
    page = Page(code=rule.code, name=rule.name, page=rule.page.strip())

    def report() -> "RenderableType":
        from advisor.report.page import page_report

        return page_report(page.code, page.name, page.page)

    return Answer(0, page, report, lambda: f"{page.code} {page.page.splitlines()[0]}")


def _checklist() -> Answer:
    from advisor.rules.checklist import page

    text = page()

    def report() -> "RenderableType":
        from advisor.report.page import page_report

        return page_report("Checklist", "", text)

    return Answer(0, Page(code=CHECKLIST, name=CHECKLIST, page=text), report, lambda: text.splitlines()[0])

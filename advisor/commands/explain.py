"""`advisor explain CODE`: the page of one rule."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from advisor.answer import Answer
from advisor.arguments import add_output
from advisor.commands.rules import add_rules_dir, find, known_rules
from advisor.rules.machine import Value
from advisor.rules.rule import Rule

if TYPE_CHECKING:
    from rich.console import RenderableType


CHECKLIST, LIST = "checklist", "list"


class Page(Value, frozen=True, kw_only=True):
    version: int = 1
    code: str
    name: str
    page: str


class Line(Value, frozen=True, kw_only=True):
    """One rule of the list."""

    code: str
    name: str
    finds: str  # the first line of its page


class Listing(Value, frozen=True, kw_only=True):
    version: int = 1
    rules: tuple[Line, ...]


def add_explain(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser("explain", help="the page of one rule, or a list of all", allow_abbrev=False)
    parser.add_argument("code", metavar="CODE", help="as findings show it: MEM101; or list, or checklist")
    add_rules_dir(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> Answer:
    """Find the rule by its code or its name."""
    rules = known_rules(args.rules_dir)
    if args.code.lower() == LIST:
        return _list(rules)
    if args.code.lower() == CHECKLIST:
        return _checklist()
    rule = find(rules, args.code)
    page = Page(code=rule.code, name=rule.name, page=rule.page.strip())

    def report() -> "RenderableType":
        from advisor.report.page import page_report

        return page_report(page.code, page.name, page.page)

    return Answer(0, page, report, lambda: f"{page.code} {page.page.splitlines()[0]}")


def _list(rules: Sequence[Rule]) -> Answer:
    lines = tuple(Line(code=rule.code, name=rule.name, finds=rule.page.strip().partition("\n")[0]) for rule in rules)

    def report() -> "RenderableType":
        from advisor.report.page import list_report

        return list_report([(line.code, line.name, line.finds) for line in lines])

    return Answer(0, Listing(rules=lines), report, lambda: f"{len(lines)} rules")


def _checklist() -> Answer:
    from advisor.rules.checklist import page

    text = page()

    def report() -> "RenderableType":
        from advisor.report.page import page_report

        return page_report("Checklist", "", text)

    return Answer(0, Page(code=CHECKLIST, name=CHECKLIST, page=text), report, lambda: text.splitlines()[0])

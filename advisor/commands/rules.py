"""Which rules a command runs: all of ours, without the ones ignored, and those of the user's own folder."""

import argparse
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from string import digits
from types import ModuleType
from typing import TYPE_CHECKING

from advisor.arguments import names
from advisor.rules.errors import AdvisorError

if TYPE_CHECKING:
    from advisor.rules.plan import Finding
    from advisor.rules.rule import Case, Rule

PRIVATE = "advisor_own_rules_"  # begins the names under which a user's files are imported
CODE = re.compile(r"[A-Z]{2,8}\d{1,4}")


def add_rules(parser: argparse._ActionsContainer) -> None:
    """Add the options that choose rules."""
    parser.add_argument(
        "--ignore",
        type=names,
        action="extend",
        default=[],
        metavar="CODE,...",
        help="rules to leave out, by code or name; may be repeated",
    )
    add_rules_dir(parser)


def add_rules_dir(parser: argparse._ActionsContainer) -> None:
    """Add the option that names a folder of further rules."""
    parser.add_argument(
        "--rules-dir", metavar="DIR", type=Path, help="a folder of your own rules, *.py (docs/rules.md says how)"
    )


def add_only(parser: argparse._ActionsContainer) -> None:
    """Add the option that runs some rules alone."""
    parser.add_argument(
        "--rules", type=names, default=(), metavar="CODE,...", help="run only these rules, by code or name"
    )


def rules_of(args: argparse.Namespace) -> "tuple[Rule, ...]":
    """Return the rules that the options leave, ours first. Raises AdvisorError for a rule that there is not."""
    rules = known_rules(args.rules_dir)
    only, ignored = named(rules, getattr(args, "rules", ())), named(rules, args.ignore)
    return tuple(rule for rule in rules if rule.code not in ignored and (not only or rule.code in only))


def known_rules(folder: Path | None) -> "tuple[Rule, ...]":
    """Return our rules, then those of the user's folder."""
    from advisor.rules.catalog import RULES

    return RULES if folder is None else (*RULES, *own_rules(folder))


def find(rules: "Sequence[Rule]", word: str) -> "Rule":
    """Return a rule by its code or its name. Raises AdvisorError where there is none."""
    for rule in rules:
        if word.lower() in (rule.code.lower(), rule.name.lower()):
            return rule
    near = [rule.code for rule in rules if rule.code.startswith(word[:3].upper())]
    known = f"{word[:3].upper()} has {', '.join(near)}" if near else "advisor explain list shows all"
    raise AdvisorError(f"there is no rule {word}", known)


def named(rules: "Sequence[Rule]", words: Collection[str]) -> frozenset[str]:
    """Return the codes of rules that are given by code, by name, or by what codes begin with: SCR."""
    return frozenset(code for word in words for code in _meant(rules, word))


def _meant(rules: "Sequence[Rule]", word: str) -> list[str]:
    group = [rule.code for rule in rules if rule.code.rstrip(digits) == word.upper()]
    return group or [find(rules, word).code]


def own_rules(folder: Path) -> "tuple[Rule, ...]":
    """Read the rules of all files *.py in a folder; a file whose name begins with _ is not one of them."""
    from advisor.rules.catalog import RULES

    if not folder.is_dir():
        raise AdvisorError(f"--rules-dir {folder} is no folder", "give a folder with files *.py")
    files = [file for file in sorted(folder.glob("*.py")) if not file.name.startswith("_")]
    found: list[Rule] = []
    for file in files:
        for rule in _rules_in(file):
            _check(rule, file, (*RULES, *found))
            found.append(rule._replace(check=_Check(rule, file)))
    if not found:
        raise AdvisorError(f"{folder} has no file *.py that defines a rule", "docs/rules.md shows one")
    return tuple(found)


def _rules_in(file: Path) -> "list[Rule]":
    from advisor.rules.catalog import RULES
    from advisor.rules.rule import Rule

    module = _imported(file)
    found = [value for value in vars(module).values() if isinstance(value, Rule) and value not in RULES]
    if not found:
        raise AdvisorError(f"{file} defines no rule", "decorate its function: @rule('OWN101', 'what-it-finds')")
    return found


def _imported(file: Path) -> ModuleType:
    """Run a file as a module of a private name, which meets no module of the user's; nothing is written beside it."""
    module = ModuleType(PRIVATE + re.sub(r"\W", "_", file.stem))
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # the decorator takes the page from there
    try:
        exec(compile(file.read_bytes(), str(file), "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise _fault(file, error, "can't be imported") from error
    return module


def _check(rule: "Rule", file: Path, others: "Sequence[Rule]") -> None:
    if not CODE.fullmatch(rule.code):
        raise AdvisorError(f"{file}: {rule.code!r} is no code", "give capitals and a number: OWN101")
    for other in others:
        if rule.code == other.code or rule.name == other.name:
            raise AdvisorError(
                f"{file}: {rule.code} {rule.name} is taken by {other.code} {other.name}", "give another code and name"
            )


class _Check:
    """A user's check, whose errors name its file."""

    def __init__(self, rule: "Rule", file: Path) -> None:
        self.rule, self.file = rule, file

    def __call__(self, case: "Case") -> "Iterator[Finding]":
        from advisor.rules.plan import Finding

        try:
            findings = list(self.rule.check(case))
        except Exception as error:
            raise _fault(self.file, error, f"{self.rule.code} failed") from error
        for finding in findings:
            if not isinstance(finding, Finding) or finding.code != self.rule.code:
                raise AdvisorError(
                    f"{self.file}: {self.rule.code} gave {finding!r}", f"yield Finding(code={self.rule.code!r}, ...)"
                )
        return iter(findings)


def _fault(file: Path, error: BaseException, what: str) -> AdvisorError:
    """Make the one error for whatever a user's file does, with its line where that is known."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    place = error.__traceback__
    while place is not None:
        if place.tb_frame.f_code.co_filename == str(file):
            line = place.tb_lineno
        place = place.tb_next
    where = f"{file}:{line}" if line else str(file)
    return AdvisorError(f"{where}: {what}: {type(error).__name__}: {error}", "mend the file, or leave --rules-dir out")

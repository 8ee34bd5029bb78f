"""What a rule is: a function from a case to findings, with a code and a name; its module's docstring is its page."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from advisor.rules.job import Job
from advisor.rules.machine import Machine, Value
from advisor.rules.plan import Candidate, Finding, Plan, Predicted, Severity
from advisor.rules.script import Script

if TYPE_CHECKING:
    from advisor.rules.source.source import Source


class Case(Value, frozen=True, kw_only=True):
    """What rules judge. Without `job` it is a machine alone; `plan` is the best that was found, if any fits.

    `candidates` are all that were priced, `script` what is to be run, `source` what it does, where that is known.
    """

    machine: Machine
    job: Job | None = None
    plan: Plan | None = None
    predicted: Predicted | None = None
    candidates: tuple[Candidate, ...] = ()
    script: Script | None = None
    source: "Source | None" = None


Check = Callable[[Case], Iterator[Finding]]


class Rule(NamedTuple):
    code: str
    name: str
    check: Check
    page: str


def rule(code: str, name: str) -> Callable[[Check], Rule]:
    """Make a rule of a check function; the docstring of the module that defines it is the page."""

    def make(check: Check) -> Rule:
        return Rule(code, name, check, sys.modules[check.__module__].__doc__ or "")

    return make


def run_rules(rules: Iterable[Rule], case: Case, ignore: Sequence[str] = ()) -> tuple[Finding, ...]:
    """Return all findings on the case, errors first, in the order of their codes."""
    order: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}
    found = [finding for r in rules if r.code not in ignore for finding in r.check(case)]
    return tuple(sorted(found, key=lambda finding: (order[finding.severity], finding.code)))

"""What is known against a run before it starts: what rules find on the machine, the plan and the script together."""

import os
from collections.abc import Sequence
from contextlib import suppress

from advisor.executor.check import OF_SCRIPTS, source_of_script
from advisor.executor.ignore import heeded
from advisor.executor.script import read_script
from advisor.executor.script_uses import script_of
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Machine
from advisor.rules.plan import Finding, Plan, Predicted
from advisor.rules.rule import Case, Rule, run_rules

# Errors of a script that the way it is started mends: each rank is shown its own GPU alone.
MENDED = ("hard-coded-device",)


def judged(
    script: str | os.PathLike[str], plan: Plan, machine: Machine, predicted: Predicted | None, rules: Sequence[Rule]
) -> tuple[Finding, ...]:
    """Return all findings on a run, without those that comments of the script silence."""
    facts = read_script(script)
    shown, source = script_of(script, facts), None
    if facts.syntax_error is None:
        with suppress(AdvisorError):  # too deep to be walked: python may run it all the same
            source = source_of_script(script)
    case = Case(machine=machine, plan=plan, predicted=predicted, script=shown, source=source)
    return heeded(run_rules(rules, case))


def stopping(findings: Sequence[Finding], plan: Plan) -> list[Finding]:
    """Return the errors that this plan turns into a hang or a wrong result; mistakes between ranks need two."""
    return [finding for finding in findings if finding.severity == "error" and not _harmless(finding, plan)]


def _harmless(finding: Finding, plan: Plan) -> bool:
    return finding.code.startswith(OF_SCRIPTS) and (plan.ranks == 1 or finding.name in MENDED)

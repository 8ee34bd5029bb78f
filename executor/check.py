"""Look at a training script before it runs: what it is, and the mistakes that its source shows. Nothing is executed."""

import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from advisor.executor.ignore import heeded
from advisor.executor.own_modules import own_modules
from advisor.executor.script import Kind, facts_of
from advisor.executor.script_uses import uses_of
from advisor.rules.catalog import RULES
from advisor.rules.machine import Machine, Value
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, Rule, run_rules
from advisor.rules.source.source import Source, source_of

OF_SCRIPTS = ("SCR", "PAR111", "PAR118", "PAR119", "PAR120", "PAR121", "PAR123")  # rules that need no machine


class Checked(Value, frozen=True, kw_only=True):
    script: str
    kind: Kind
    findings: tuple[Finding, ...]


def check_script(script: str | os.PathLike[str], rules: Iterable[Rule] = RULES) -> Checked:
    """Check a script and the modules of its own by those of the rules that need no machine.

    What a comment in them silences is left out. Raises an AdvisorError where the script can't be read.
    """
    with _collector_paused():
        modules = own_modules(Path(script))
        source = source_of(modules)
        facts = facts_of(script, modules, source)
        case = Case(machine=Machine(), script=uses_of(script, facts, modules), source=source)
        findings = run_rules(script_rules(rules), case)
    return Checked(script=os.fspath(script), kind=facts.kind, findings=heeded(findings))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Look for no cycles meanwhile: what is made here is kept to the end, and looking takes half of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def script_rules(rules: Iterable[Rule] = RULES) -> tuple[Rule, ...]:
    """Return the rules that judge scripts; a user's own are asked as well, with a machine that nothing is known of."""
    ours = {rule.code for rule in RULES if not rule.code.startswith(OF_SCRIPTS)}
    return tuple(rule for rule in rules if rule.code not in ours)


def source_of_script(script: str | os.PathLike[str]) -> Source:
    """Read a script and the modules beside it that it imports, and walk it."""
    return source_of(own_modules(Path(script)))

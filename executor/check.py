"""Look at a training script before it runs: what it is, and the mistakes that its source shows. Nothing is executed."""

import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path

from advisor.executor.ignore import heeded
from advisor.executor.script import Kind, own_modules, read_script, source_of
from advisor.executor.script_uses import script_of
from advisor.rules.catalog import RULES
from advisor.rules.machine import Machine, Value
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, Rule, run_rules
from advisor.rules.source.modules import parse
from advisor.rules.source.source import Source, read_source

OF_SCRIPTS = ("SCR", "PAR111", "PAR119", "PAR120", "PAR121", "PAR123")  # rules that need no machine


class Checked(Value, frozen=True, kw_only=True):
    script: str
    kind: Kind
    findings: tuple[Finding, ...]


def check_script(script: str | os.PathLike[str], rules: Iterable[Rule] = RULES) -> Checked:
    """Check a script and the modules of its own by those of the rules that need no machine.

    What a comment in them silences is left out. Raises an AdvisorError where the script can't be read.
    """
    source = source_of_script(script)
    facts = read_script(script)
    case = Case(machine=Machine(), script=script_of(script, facts), source=source)
    findings = run_rules(script_rules(rules), case)
    return Checked(script=os.fspath(script), kind=facts.kind, findings=heeded(findings))


def script_rules(rules: Iterable[Rule] = RULES) -> tuple[Rule, ...]:
    """Return the rules that judge scripts; a user's own are asked as well, with a machine that nothing is known of."""
    ours = {rule.code for rule in RULES if not rule.code.startswith(OF_SCRIPTS)}
    return tuple(rule for rule in rules if rule.code not in ours)


def source_of_script(script: str | os.PathLike[str]) -> Source:
    """Read a script and the modules beside it that it imports, and walk it."""
    path = Path(script)
    text = _text(path)
    files = {str(path): text}
    for file, _ in own_modules(path, parse(str(path), text)):
        if file != path:
            files[str(file)] = _text(file)
    return read_source(str(path), files)


def _text(path: Path) -> str:
    return importlib.util.decode_source(source_of(path))

"""Every rule has a complete page, a case where it fires and one where it is silent; each case lists all findings."""

import re
import tomllib
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from advisor.executor.check import check_script
from advisor.probe.load import load_machine
from advisor.rules import catalog
from advisor.rules.catalog import RULES
from advisor.rules.job import Job, assume_architecture
from advisor.rules.machine import Machine, Value
from advisor.rules.plan import Finding
from advisor.rules.recommend import recommend
from advisor.rules.rule import Case, Rule, run_rules
from advisor.rules.script import Script
from advisor.rules.script_plan import script_plan

ROOT = Path(__file__).parents[1]
CASES = sorted((ROOT / "fixtures" / "rules").glob("*/*.toml"))
MARK = "# <-"  # in the text of a script: the line of the finding
HEADINGS = ["What it finds", "Why it matters", "What to do", "Source"]


def machine_of(case: dict[str, Any]) -> Machine:
    sources = [case["machine"]] if isinstance(case["machine"], str) else case["machine"]
    stored = [ROOT / "fixtures" / "machines" / f"{source}.json" for source in sources]
    machine = load_machine(
        *(str(file) if file.exists() else source for source, file in zip(sources, stored, strict=True))
    )
    facts = dict(case.get("facts", {}))
    of_each_gpu = facts.pop("gpu", {})
    gpus = tuple(changed(gpu, of_each_gpu) for gpu in machine.gpus)
    return changed(replace(machine, environment=case.get("environment", {}), gpus=gpus), facts)


def changed(value: Any, facts: dict[str, Any]) -> Any:
    """Return a value with some of its fields set from TOML; those of a nested value one by one."""
    hints = typing.get_type_hints(type(value))
    fields = {}
    for name, fact in facts.items():
        now = getattr(value, name)
        nested = isinstance(now, Value) and isinstance(fact, dict)
        fields[name] = changed(now, fact) if nested else msgspec.convert(fact, hints[name])
    return replace(value, **fields)


def job_of(given: dict[str, Any]) -> Job:
    architecture, seq = assume_architecture(given["params"])
    of_architecture = {name: given[name] for name in given if name in architecture.__struct_fields__}
    params = int(given["params"])
    usual = {"params": params, "trainable_params": params, "seq": seq}
    of_job = {name: given[name] for name in given if name in Job.__struct_fields__}
    return msgspec.convert(
        usual | of_job | {"params": params, "architecture": replace(architecture, **of_architecture)}, Job
    )


def findings_of(case: dict[str, Any], folder: Path) -> tuple[Finding, ...]:
    if isinstance(case.get("script"), str):  # its text
        for name, text in {"train.py": case["script"], **case.get("files", {})}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return check_script(folder / "train.py").findings
    machine = machine_of(case)
    if "job" in case:
        return recommend(job_of(case["job"]), machine, only=case.get("only", ())).findings
    script = msgspec.convert(case["script"], Script) if "script" in case else None
    plan = script_plan(machine) if script else None
    return run_rules(RULES, Case(machine=machine, plan=plan, script=script))


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_case_has_exactly_the_findings_it_lists(path: Path, tmp_path: Path) -> None:
    case = tomllib.loads(path.read_text())
    found = findings_of(case, tmp_path)
    assert sorted(f"{finding.severity} {finding.code}" for finding in found) == case["expect"]
    fired = path.parent.name in {finding.code for finding in found}
    assert fired == path.name.startswith("fires-")
    assert all(finding.message and finding.remedy for finding in found)
    marked = [number for number, line in enumerate(str(case.get("script")).splitlines(), 1) if MARK in line]
    if marked:
        assert [finding.line for finding in found if finding.code == path.parent.name] == marked


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_has_a_page_and_both_kinds_of_case(rule: Rule) -> None:
    assert re.findall(r"^## (.+)$", rule.page, re.MULTILINE) == HEADINGS
    assert rule.page.splitlines()[0].endswith(".")
    kinds = {path.name.split("-")[0] for path in CASES if path.parent.name == rule.code}
    assert kinds == {"fires", "silent"}


def test_codes_and_names_are_unique_and_match_their_files() -> None:
    assert len({rule.code for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)
    files = sorted(path.stem for path in Path(catalog.__path__[0]).glob("*.py") if path.stem != "__init__")
    assert files == sorted(f"{rule.code.lower()}_{rule.name.replace('-', '_')}" for rule in RULES)

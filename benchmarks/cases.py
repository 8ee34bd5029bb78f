"""Judge the advice on cases from practice: python benchmarks/cases.py DIR...

For a case of kind A or B: the machine and the job that its words describe are given to `recommend`, and each structured
line of `expected_advice` is one check; docs/cases.md says how each is read. A line in words is a check only where
fixtures/cases.toml names the rule whose finding must be there; the others are printed beside the findings. For a case
of kind C, its script is checked, and its clean twin: one check is the finding expected, on its line and by its meaning;
an error or a warning on the twin is a false alarm. The last line is a JSON object.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from case_answers import Answer, conditions
from case_figures import judge_diagnosis, judge_figure
from case_options import Verdict, is_option, judge_environment, judge_option
from case_scripts import judge_script

from advisor.rules.errors import AdvisorError
from advisor.rules.plan import Plan

RULES_OF_LINES = Path(__file__).parents[1] / "fixtures" / "cases.toml"
MEANINGS = "findings in scripts"  # of the table that names rules by what cases of kind C expect
NONE_EXPECTED = "finding: none"

_VARIANT = re.compile(r"(?:for|on|with)\s+([^:{]*):\s*(.*)")
_STRATEGY = re.compile(r"strategy (not )?in \{(.*?)\}\s*(.*)")
_ALSO = re.compile(r"also acceptable: ([\w, /]+?) only (.*)")
_WORDS = ("option ", "env ", "predicted ", "diagnosis in")


class Check(NamedTuple):
    """One line of a case; `holds` is None where it can't be judged."""

    line: str
    holds: bool | None
    found: str


class Outcome(NamedTuple):
    name: str
    checks: tuple[Check, ...] = ()
    unmapped: tuple[str, ...] = ()  # lines for a reader
    answer: str = ""
    findings: tuple[str, ...] = ()
    false_alarms: int = 0
    not_yet: str = ""

    @property
    def judged(self) -> list[Check]:
        return [check for check in self.checks if check.holds is not None]

    @property
    def passed(self) -> bool:
        return bool(self.judged) and all(check.holds for check in self.judged)


def judge(case: dict[str, Any], rules: dict[str, Any]) -> Outcome:
    """Judge one case; `rules` maps its lines in words to codes of findings."""
    name = case["id"]
    if case["kind"] == "C":
        return _judge_script(case, rules)
    answer = Answer(case["hardware"], case.get("workload", {}), case.get("inputs", {}))
    checks: list[Check] = []
    unmapped = []
    for line in case["expected_advice"]:
        also = _ALSO.match(line)
        if also and checks:
            checks[-1] = _or_also(checks[-1], answer, also)
            continue
        found = list(checks_of(answer, line))
        if line in rules:
            given = rules[line] in [finding.code for finding in answer.findings]
            found = [Check(line, given, f"{'' if given else 'no '}{rules[line]}")]
        checks += found
        if not found:
            unmapped.append(line)
    alarms = [finding for finding in answer.findings if finding.severity != "info"]
    clean = any(line.startswith(NONE_EXPECTED) for line in case["expected_advice"])
    return Outcome(
        name,
        tuple(checks),
        tuple(unmapped),
        answer.words,
        tuple(f"{finding.code} {finding.message}" for finding in answer.findings),
        len(alarms) if clean else 0,
    )


def _judge_script(case: dict[str, Any], meanings: dict[str, Any]) -> Outcome:
    told = judge_script(case, meanings)
    alarms = [f"false alarm: {f.severity} {f.code} line {f.line}: {f.message}" for f in told.false_alarms]
    given = [f"{f.severity} {f.code} line {f.line}: {f.message}" for f in told.findings]
    return Outcome(
        case["id"],
        (Check(told.line, told.holds, told.found),),
        tuple(alarms),
        "a script",
        tuple(given) if alarms or not told.holds else (),
        len(told.false_alarms),
        not_yet="needs a run" if told.holds is None else "",
    )


def checks_of(answer: Answer, line: str) -> Iterator[Check]:
    """Yield the checks of a line: none where it is in words, one for each part of it that is structured."""
    variant = _VARIANT.match(line)
    text = variant[2] if variant else line
    parts = [part for part in re.split(r";\s*", text) if _is_structured(part)]
    for part in parts:
        asked = _varied(answer, variant[1]) if variant else answer
        try:
            verdict = Verdict(None, f"{variant[1]} is not understood") if variant and not asked else _judge(asked, part)
        except AdvisorError as error:
            verdict = Verdict(None, error.message)
        yield Check(line if len(parts) == 1 else part, *verdict)


def _is_structured(text: str) -> bool:
    return bool(_STRATEGY.match(text)) or text.startswith(_WORDS) or is_option(text)


def _judge(answer: Answer | None, text: str) -> Verdict:
    assert answer is not None
    strategy = _STRATEGY.match(text)
    if strategy:
        return _judge_strategy(answer, *strategy.groups())
    word, _, rest = text.partition(" ")
    if word == "env":
        return judge_environment(answer, rest)
    if word == "predicted":
        return judge_figure(answer, rest)
    if word == "diagnosis":
        return judge_diagnosis(answer, rest)
    return judge_option(answer, rest if word == "option" else text)


def _judge_strategy(answer: Answer, unwanted: str | None, names: str, condition: str) -> Verdict:
    """Judge `strategy in {...}`, or `not in`, with what stands behind: another job, or what the plan must do too."""
    if condition.startswith("for "):
        varied = _varied(answer, condition.removeprefix("for "))
        if varied is None:
            return Verdict(None, f"{condition} is not understood")
        answer = varied
    if answer.found is None:
        return Verdict(None, answer.words)
    given = answer.strategies
    among = bool(given & {name.strip() for name in names.split(",")})
    holds = not among if unwanted else among
    if holds and answer.plan and not unwanted:
        holds = all(conditions(answer, answer.plan, condition))
    return Verdict(holds, ", ".join(sorted(given)))


def _varied(answer: Answer, words: str) -> Answer | None:
    """Ask for another method, size of the model or memory of the GPU; None where the words say nothing of these."""
    method = re.match(r"method\s*=\s*(\w+)", words)
    if method:
        return answer.changed({}, {"method": method[1]})
    params = re.search(r"\b(\d+(?:\.\d+)?)\s*([MB])\b", words)
    memory = re.search(r"\b(\d+)\s*Gi?B\b", words)
    if not params and not memory:
        return None
    workload = {"params": float(params[1]) * (1e9 if params[2] == "B" else 1e6)} if params else {}
    return answer.changed({"memory_gib": int(memory[1])} if memory else {}, workload)


def _or_also(check: Check, answer: Answer, also: re.Match[str]) -> Check:
    """Let a failed check pass where the answer is what the case accepts beside it."""
    names = {name.strip() for name in re.split(r",|/| or ", also[1])}
    plan: Plan | None = answer.plan
    if check.holds is not False or plan is None or not answer.strategies & names:
        return check
    asked = conditions(answer, plan, also[2])
    return check._replace(holds=bool(asked) and all(asked))


def case_files(paths: Iterable[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        yield from sorted(path.glob("*.json")) if path.is_dir() else [path]


def show(outcome: Outcome) -> None:
    judged = outcome.judged
    share = f"{sum(bool(check.holds) for check in judged)}/{len(judged)}"
    print(f"{outcome.name:48} {share:>5}  {outcome.not_yet or outcome.answer}")
    words = {True: "right", False: "WRONG", None: "not judged"}
    for check in outcome.checks:
        print(f"    {words[check.holds]:10}  {check.line}{f'  [{check.found}]' if check.found else ''}")
    for line in outcome.unmapped:
        print(f"    {'to read':10}  {line}")
    for finding in outcome.findings if outcome.unmapped or not outcome.passed else ():
        print(f"    {'given':10}  {finding}")


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("usage: python benchmarks/cases.py DIR...")
    rules = tomllib.loads(RULES_OF_LINES.read_text())
    cases = [json.loads(file.read_bytes()) for file in case_files(sys.argv[1:])]
    names = [MEANINGS if case.get("kind") == "C" else case.get("id") for case in cases]
    outcomes = [judge(case, rules.get(name, {})) for case, name in zip(cases, names, strict=True) if "kind" in case]
    for outcome in outcomes:
        show(outcome)
    judged = [check for outcome in outcomes for check in outcome.judged]
    summary = {
        "cases": len(outcomes),
        "passed": sum(outcome.passed for outcome in outcomes),
        "checks": len(judged),
        "checks_passed": sum(bool(check.holds) for check in judged),
        "clean_false_alarms": sum(outcome.false_alarms for outcome in outcomes),
        "not_judged": sum(check.holds is None for outcome in outcomes for check in outcome.checks),
        "cases_not_judged": sum(not outcome.judged for outcome in outcomes),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()

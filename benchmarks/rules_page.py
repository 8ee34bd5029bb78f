"""Write docs/rules.md: all rules by group, and how to add one's own. Run: python benchmarks/rules_page.py"""

import ast
import inspect
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import dedent

from advisor.rules.catalog import RULES
from advisor.rules.rule import Rule

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/rules.md"
CASES = ROOT / "fixtures/rules"
GROUPS = {
    "MEM": "memory",
    "NET": "links and networks",
    "PAR": "strategies and communication",
    "CPU": "processors and host memory",
    "ENV": "settings, versions and the state of the machine",
    "SCR": "training scripts",
}
SEVERITIES = ("error", "warning", "info")

INTRODUCTION = """\
# Rules

{count} rules judge a machine, a plan and a script. Each finding has a code, a severity, one sentence with its
numbers, and what to type. `advisor explain CODE` prints a rule's page (what it finds, why it matters, what to do,
source), `advisor explain list` this list. It is written by

    python benchmarks/rules_page.py

- **error**: it will not work, or computes something wrong. `recommend` and `probe` say so, `apply` refuses.
- **warning**: it very likely costs more than 10 %, or fails.
- **info**: worth knowing, and what a plan sets by itself.

A rule has the severities listed; its numbers decide which. Settings of a plan's environment always come from a rule:
its finding holds them as `facts.env`, beside the condition. A value that you set yourself is never overridden.

`--ignore CODE,...` leaves rules out, `recommend --rules CODE,...` runs some alone; both take names as well.
"""

OWN = """\
## Your own rules

`--rules-dir DIR` adds the rules in all files `*.py` of a folder, except those whose name begins with `_`. One file is
one module, run by itself; its docstring is the page that `advisor explain OWN101 --rules-dir DIR` prints. For example
`DIR/own101_driver_is_old.py`:

```python
{example}```

A check gets the case: `case.machine` (facts of the machine, unknown ones are None), `case.job`, `case.plan`,
`case.predicted` and `case.candidates` where a job was given, `case.script` where one is run, `case.source` where one
is checked. It yields findings and
changes nothing. `advisor probe --json` shows the names of all facts; `rules/machine.py` and `rules/plan.py` describe
them. A finding with `facts={{"env": {{"NAME": "value"}}}}` sets that variable in the plan. Codes and names must not
be those of other rules. A file that can't be run, and a check that raises, end the command with the file and the
line.
"""

EXAMPLE = dedent('''\
    """The driver is older than the one we test with.

    ## What it finds
    A driver before 570.

    ## Why it matters
    Our images are built for it.

    ## What to do
    Ask for an update.

    ## Source
    The operations handbook
    """

    from collections.abc import Iterator

    from advisor.rules.plan import Finding
    from advisor.rules.rule import Case, rule


    @rule("OWN101", "driver-is-old")
    def check(case: Case) -> Iterator[Finding]:
        driver = case.machine.software.driver
        if driver is not None and int(driver.split(".")[0]) < 570:
            yield Finding(
                code="OWN101",
                name="driver-is-old",
                severity="warning",
                message=f"the driver is {driver}, we test with 570 and newer",
                facts={"driver": driver},
                remedy="ask operations for driver 570",
            )
''')


def severities(rule: Rule) -> list[str]:
    """Return what the rule's module names, and what its cases expect of it, the worst first."""
    tree = ast.parse(inspect.getsource(inspect.getmodule(rule.check) or rule.check))
    named = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value in SEVERITIES}
    for case in (CASES / rule.code).glob("*.toml"):
        expected = [line.split() for line in tomllib.loads(case.read_text())["expect"]]
        named |= {severity for severity, code in expected if code == rule.code}
    return [severity for severity in SEVERITIES if severity in named]


def rows(rules: Iterable[Rule]) -> Iterator[str]:
    """Yield the rows of a table of rules."""
    yield "| code | name | severity | what it finds |"
    yield "|---|---|---|---|"
    for rule in rules:
        first = rule.page.strip().splitlines()[0].replace("|", "\\|")
        yield f"| {rule.code} | {rule.name} | {', '.join(severities(rule))} | {first} |"


def group_of(rule: Rule) -> str:
    return re.match(r"[A-Z]+", rule.code)[0]  # type: ignore[index]


def group_rows() -> Iterator[str]:
    """Yield the rows of the README's table: each group and how many rules it has."""
    for group, what in GROUPS.items():
        count = sum(group_of(rule) == group for rule in RULES)
        yield f"| {group} | {what} | {count} |"


def not_right() -> str:
    """Return what docs/cases.md says about the advice on cases from practice that was wrong."""
    section = (ROOT / "docs/cases.md").read_text().partition("## What is not right\n")[2].partition("\n## ")[0]
    return f"## What is not right on cases from practice\n\nAs [cases.md](cases.md) has it.\n{section.rstrip()}\n"


def page() -> str:
    parts = [INTRODUCTION.format(count=len(RULES))]
    for group, what in GROUPS.items():
        of_group = [rule for rule in RULES if group_of(rule) == group]
        parts.append(f"## {group}: {what}\n\n" + "\n".join(rows(of_group)) + "\n")
    parts += [OWN.format(example=EXAMPLE), not_right()]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
    print("\n".join(group_rows()))

"""Which rules run: --ignore, --rules, --rules-dir, and silence on healthy machines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from advisor.cli import main

ROOT = Path(__file__).parents[2]
MACHINES = ROOT / "fixtures" / "machines"
DESCRIBED = [  # those of docs/machines.md, and some with a name
    "8x v100 mesh",
    "8x a100 nvswitch",
    "8x h100 nvswitch",
    "8x b200 nvswitch",
    "2x h100 pcie bridge",
    "4x 5090",
    "8x 5090, 2 sockets",
    "8x 4090 pcie4, 2 sockets",
    "2x 2080 ti pcie3 switch",
    "4x a10g pcie3x8",
    "2x 3090 bridge",
    "8x mi300x",
    "2x8 a100 80gb nvswitch, efa 4x100",
    "2x8 h100 nvswitch, ib 8x400",
    "p4d.24xlarge",
    "2x p5.48xlarge",
    "dgx h100",
]
OWN = """
from collections.abc import Iterator
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

@rule("OWN101", "own-finding")
def check(case: Case) -> Iterator[Finding]:
    yield Finding(
        code="OWN101", name="own-finding", severity="info", message="found", facts={"env": {"OWN": "1"}}, remedy="none"
    )
"""


class Said(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def advisor(capsys: pytest.CaptureFixture[str], bare_host: Path) -> Command:
    def run(*arguments: str) -> Said:
        code = main(arguments)
        return Said(code, *capsys.readouterr())

    return run


def codes(said: Said) -> list[str]:
    found: dict[str, Any] = json.loads(said.out)
    return [finding["code"] for finding in found["findings"]]


def own(folder: Path, text: str, name: str = "own101.py") -> list[str]:
    (folder / name).write_text(text)
    return ["--machine", str(MACHINES / "2xh200-nv18.json"), "--rules-dir", str(folder)]


@pytest.mark.parametrize("source", [*map(str, sorted(MACHINES.glob("*.json"))), *DESCRIBED], ids=lambda s: Path(s).stem)
def test_a_healthy_machine_has_no_error_and_no_warning(advisor: Command, source: str) -> None:
    said = advisor("probe", "--machine", source, "--json")
    assert said.code == 0
    assert [f for f in json.loads(said.out)["findings"] if f["severity"] != "info"] == []


def test_rules_are_left_out_by_code_or_name(advisor: Command) -> None:
    job = ("recommend", "--params", "1.3e9", "--machine", "4x 4090 pcie3x4", "--global-batch", "4", "--json")
    found = set(codes(advisor(*job)))
    assert {"ENV101"} < found
    first, second, *_ = sorted(found - {"ENV101"})
    left = codes(advisor(*job, "--ignore", f"{first},{second}", "--ignore", "nccl-debug-unset"))
    assert set(left) == found - {"ENV101", first, second}


def test_a_plan_has_no_setting_of_an_ignored_rule(advisor: Command) -> None:
    job = ("recommend", "--params", "1.3e9", "--machine", "8x h100 nvswitch", "--json")
    assert json.loads(advisor(*job).out)["plan"]["env"] == {"NCCL_DEBUG": "WARN"}
    assert json.loads(advisor(*job, "--ignore", "env101").out)["plan"]["env"] == {}


def test_some_rules_run_alone(advisor: Command) -> None:
    job = ("recommend", "--params", "1.3e9", "--machine", "8x h100 nvswitch", "--json")
    assert codes(advisor(*job, "--rules", "ENV101,MEM101")) == ["ENV101"]
    assert codes(advisor(*job, "--rules", "ENV101,MEM101", "--ignore", "ENV101")) == []


@pytest.mark.parametrize("option", [["--ignore", "XYZ1"], ["--rules", "MEM999"], ["--ignore", "ENV101,nothing"]])
def test_a_rule_that_there_is_not_is_refused(advisor: Command, option: list[str]) -> None:
    said = advisor("recommend", "--params", "1e9", "--machine", "8x h100 nvswitch", *option)
    assert said.code == 2
    assert said.err.startswith("advisor: there is no rule ")


def test_apply_takes_the_same_options(advisor: Command) -> None:
    script = str(ROOT / "examples" / "train_gpt.py")
    said = advisor(
        "apply", "--machine", "4x a100 nvswitch", "--ignore", "ENV101", "--dry-run", "--json", script, "--ignore", "x"
    )
    assert said.code == 0, said.err
    assert "NCCL_DEBUG=WARN" not in said.out
    assert said.out.count("--ignore") == 1  # the script's own


def test_own_rules_are_shown_as_ours(advisor: Command, tmp_path: Path) -> None:
    options = own(tmp_path, '"""An own finding."""\n' + OWN)
    (tmp_path / "_helper.py").write_text("1 / 0")
    assert "OWN101" in codes(advisor("probe", *options, "--json"))
    plan = json.loads(advisor("recommend", "--params", "1e9", *options, "--json").out)["plan"]
    assert plan["env"]["OWN"] == "1"
    assert "own-finding" in advisor("probe", *options).out
    assert "OWN101" not in codes(advisor("probe", *options, "--ignore", "OWN101", "--json"))
    assert "An own finding." in advisor("explain", "OWN101", *options[2:]).out
    assert sorted(file.name for file in tmp_path.iterdir()) == ["_helper.py", "own101.py"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def (", "own101.py:1: can't be imported: SyntaxError"),
        ("\nimport no_such_module", "own101.py:2: can't be imported: ModuleNotFoundError"),
        ("raise SystemExit(3)", "own101.py:1: can't be imported: SystemExit: 3"),
        ("x = 1", "own101.py defines no rule"),
        (OWN.replace("OWN101", "ENV101"), "ENV101 own-finding is taken by ENV101 nccl-debug-unset"),
        (OWN.replace("own-finding", "nccl-debug-unset"), "OWN101 nccl-debug-unset is taken by ENV101"),
        (OWN.replace("OWN101", "own"), "'own' is no code"),
        (OWN.replace("    yield", "    1 / 0\n    yield"), "own101.py:8: OWN101 failed: ZeroDivisionError"),
        (OWN.replace("yield Finding(", "yield dict("), "OWN101 gave {"),
        (OWN.replace("yield Finding(", "return Finding("), "OWN101 failed: TypeError"),
    ],
)
def test_a_fault_in_an_own_rule_is_one_clear_error(advisor: Command, tmp_path: Path, text: str, words: str) -> None:
    said = advisor("probe", *own(tmp_path, text))
    assert said.code == 2
    assert words in said.err
    assert len(said.err.splitlines()) == 2


def test_two_own_rules_must_differ(advisor: Command, tmp_path: Path) -> None:
    own(tmp_path, OWN, "another.py")
    said = advisor("probe", *own(tmp_path, OWN))
    assert "OWN101 own-finding is taken by OWN101 own-finding" in said.err


def test_a_folder_that_is_missing_or_empty_is_named(advisor: Command, tmp_path: Path) -> None:
    assert "is no folder" in advisor("probe", "--rules-dir", str(tmp_path / "none")).err
    assert "has no file *.py that defines a rule" in advisor("probe", "--rules-dir", str(tmp_path)).err


def test_the_list_has_every_rule(advisor: Command) -> None:
    from advisor.rules.catalog import RULES

    listed = json.loads(advisor("explain", "list", "--json").out)["rules"]
    assert [line["code"] for line in listed] == [rule.code for rule in RULES]
    assert "states-exceed-memory" in advisor("explain", "list").out
    assert advisor("explain", "list", "-q").out == f"{len(RULES)} rules\n"

"""README and docs say what the code does."""

import contextlib
import io
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from advisor.cli import main
from advisor.rules.catalog import RULES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


RENEW = "run: python benchmarks/rules_page.py"


def rules_page() -> ModuleType:
    spec = spec_from_file_location("rules_page", ROOT / "benchmarks" / "rules_page.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_rules_is_the_catalogue() -> None:
    assert (ROOT / "docs" / "rules.md").read_text() == rules_page().page(), RENEW
    codes = re.findall(r"^\| ([A-Z]{3}\d{3}) ", (ROOT / "docs" / "rules.md").read_text(), re.MULTILINE)
    assert sorted(codes) == sorted(rule.code for rule in RULES)


def test_the_table_of_groups_counts_the_rules() -> None:
    found = [line for line in README.splitlines() if re.match(r"\| [A-Z]{3} \|", line)]
    assert found == list(rules_page().group_rows()), RENEW


def test_the_example_of_an_own_rule_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "rules.md").read_text(), re.DOTALL)
    assert example is not None
    (tmp_path / "own101_driver_is_old.py").write_text(example[1].replace("< 570", "< 5700"))
    machine = str(ROOT / "fixtures" / "machines" / "2xh200-nv18.json")
    assert main(["probe", "--machine", machine, "--rules-dir", str(tmp_path), "--json"]) == 0
    assert '"code": "OWN101"' in capsys.readouterr().out


def test_every_option_that_the_readme_names_exists() -> None:
    helps = io.StringIO()
    with contextlib.redirect_stdout(helps):
        for command in ("probe", "recommend", "apply", "check", "explain"):
            assert main([command, "--help"]) == 0
    known = set(re.findall(r"--[a-z][-a-z]+", helps.getvalue()))
    named = set(re.findall(r"(?<!\S)`?(--[a-z][-a-z]+)", README))
    assert named - {"--epochs", "--showtopo"} <= known  # of the reader's script, and of rocm-smi


def test_every_file_that_the_readme_names_exists() -> None:
    for name in re.findall(
        r"`((?:rules|docs|fixtures|executor|examples|benchmarks)/[\w./-]*)`|\]\(([\w./-]+)\)", README
    ):
        path = next(filter(None, name))
        assert (ROOT / path).exists(), path


def test_every_changed_version_is_in_the_changelog() -> None:
    from advisor import __version__

    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()

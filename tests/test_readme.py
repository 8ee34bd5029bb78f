"""README and docs say what the code does."""

import contextlib
import io
import re
from pathlib import Path

from advisor.cli import main
from advisor.rules.catalog import RULES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_table_of_rules_is_the_catalogue() -> None:
    rows = [f"| {rule.code} | {rule.name} | {rule.page.splitlines()[0]} |" for rule in RULES]
    found = [line for line in README.splitlines() if re.match(r"\| [A-Z]{3}\d{3} ", line)]
    assert found == rows


def test_every_option_that_the_readme_names_exists() -> None:
    helps = io.StringIO()
    with contextlib.redirect_stdout(helps):
        for command in ("probe", "recommend", "apply", "explain"):
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

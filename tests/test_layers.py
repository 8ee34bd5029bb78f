"""Imports go one way, and what is installed is complete."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IN_PROCESS = [ROOT / "executor" / "bootstrap", ROOT / "executor" / "in_process"]
IO_MODULES = {
    "os",
    "subprocess",
    "socket",
    "time",
    "datetime",
    "random",
    "shutil",
    "tempfile",
    "threading",
    "torch",
    "rich",
}


def imports_of(path: Path) -> Iterator[str]:
    """Name what a file imports, wherever in the file it does so; imports for type checkers only are left out."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def files_of(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", files_of("rules"), ids=lambda path: str(path.relative_to(ROOT)))
def test_rules_import_rules_alone_and_touch_nothing_outside(path: Path) -> None:
    for name in imports_of(path):
        assert not name.startswith("advisor") or name.startswith("advisor.rules"), name
        assert name.split(".")[0] not in IO_MODULES, name


@pytest.mark.parametrize("path", files_of("executor"), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_executor_imports_no_probe_report_or_command(path: Path) -> None:
    ours = [name for name in imports_of(path) if name.startswith("advisor.")]
    assert all(name.startswith(("advisor.rules", "advisor.executor")) for name in ours), ours


@pytest.mark.parametrize("path", [p for d in IN_PROCESS for p in sorted(d.glob("*.py"))], ids=lambda path: path.stem)
def test_code_in_the_users_process_imports_the_standard_library_and_torch_alone(path: Path) -> None:
    import sys

    for name in imports_of(path):
        top = name.split(".")[0]
        ours = name.startswith("advisor.executor.in_process")
        assert ours or top == "torch" or top in sys.stdlib_module_names, name


def test_rich_is_imported_by_the_reports_alone() -> None:
    reports = ROOT / "advisor" / "report"
    for path in files_of("advisor"):
        if reports not in path.parents:
            assert not any(name.split(".")[0] == "rich" for name in imports_of(path)), path


def test_only_the_command_line_prints_or_leaves() -> None:
    for folder in ("advisor", "rules", "executor"):
        for path in files_of(folder):
            if path.name in ("cli.py", "__main__.py", "guard.py") or any(d in path.parents for d in IN_PROCESS):
                continue
            calls = [ast.unparse(n.func) for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
            assert not {"print", "sys.exit", "exit"} & set(calls), path


def test_every_folder_with_code_is_listed_as_a_package() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {"advisor"}
    for folder, package in (("advisor", "advisor"), ("rules", "advisor.rules"), ("executor", "advisor.executor")):
        for init in (ROOT / folder).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / folder).parts
            found.add(".".join((package, *inner)))
    assert found == listed

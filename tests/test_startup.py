"""What each command loads: exact, where a stopwatch is not."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MACHINE = str(ROOT / "fixtures" / "machines" / "4xa10g-pcie3x8.json")
PROGRAM = """
import contextlib, io, json, sys
from advisor.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    code = main(json.loads(sys.argv[1]))
print(json.dumps([code, sorted({name.split(".")[0] for name in sys.modules})]))
"""
HEAVY = {"torch", "networkx", "rich", "numpy", "psutil", "pynvml", "drawsvg", "resvg_py", "libcst"}


def loaded(*arguments: str) -> tuple[int, set[str]]:
    """Run a command in a fresh interpreter; return its exit code and the packages that it loaded."""
    import json

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(arguments)], capture_output=True, text=True, check=True, cwd="/"
    )
    code, names = json.loads(done.stdout)
    return code, set(names)


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (["--help"], set()),
        (["recommend", "--params", "1.3e9", "--machine", MACHINE, "--json"], set()),
        (["recommend", "--params", "1.3e9", "--machine", MACHINE], {"rich"}),
        (["recommend", "--params", "13e9", "--machine", "1024x8 h100 nvswitch, ib 8x400", "-q"], {"rich"}),
        (["probe", "--machine", MACHINE, "--json"], set()),
        (["probe", "--json"], {"psutil", "pynvml"}),
        (["explain", "MEM101", "--json"], set()),
        (["check", "--json", str(ROOT / "examples" / "train_gpt.py")], set()),
        (["check", str(ROOT / "examples" / "train_gpt.py")], {"rich"}),
        (["apply", "--dry-run", "--json", str(ROOT / "examples" / "train_gpt.py")], {"psutil", "pynvml"}),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, list) else "",
)
def test_a_command_loads_only_what_it_needs(arguments: list[str], allowed: set[str]) -> None:
    code, names = loaded(*arguments)
    assert code == 0
    assert names & HEAVY <= allowed


def test_help_loads_no_rules() -> None:
    program = "import sys, advisor.cli; print([name for name in sys.modules if '.rules.catalog' in name])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout == "[]\n"

"""`advisor check --fix`: shows the diff, asks on a terminal, writes only what was agreed to."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.cli import main

SCRIPT = """import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group()
rank = dist.get_rank()
model = DDP(torch.nn.Linear(2, 2))
torch.save(model.module.state_dict(), "model.pt")
"""
GUARDED = SCRIPT.replace("torch.save", "if rank == 0:\n    torch.save")
ONLY = ("check", "--select", "SCR151")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    return file


def test_without_a_terminal_it_only_shows_the_diff(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ONLY, "--fix", "train.py"]) == 1
    out = capsys.readouterr().out
    assert '+    torch.save(model.module.state_dict(), "model.pt")' in out.splitlines()
    assert out.splitlines()[-1] == "1 finding would be fixed in 1 file"
    assert script.read_text() == SCRIPT


def test_yes_writes_and_says_what_the_script_is_now(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ONLY, "--fix", "--yes", "train.py"]) == 0
    assert script.read_text() == GUARDED
    said = capsys.readouterr().out
    assert said.index("+if rank == 0:") < said.index("1 finding fixed\ntrain.py (ddp): nothing found\n")


def test_as_json_the_diff_is_a_field_and_nothing_is_asked(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ONLY, "--fix", "--json", "train.py"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["fixes"][0]["file"] == "train.py"
    assert "+if rank == 0:" in found["fixes"][0]["diff"]
    assert script.read_text() == SCRIPT
    assert main([*ONLY, "--fix", "--yes", "--json", "train.py"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["fixed"], found["findings"]) == (1, [])
    assert script.read_text() == GUARDED


def test_nothing_to_fix_is_the_usual_report(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(GUARDED)
    assert main([*ONLY, "--fix", "train.py"]) == 0
    assert capsys.readouterr().out == "train.py (ddp): nothing found\n"


def test_a_line_that_is_silenced_is_not_corrected(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(SCRIPT.replace('"model.pt")', '"model.pt")  # advisor: ignore[SCR151]'))
    before = script.read_text()
    assert main([*ONLY, "--fix", "--yes", "train.py"]) == 0
    assert script.read_text() == before


def test_yes_alone_is_a_mistake(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ONLY, "--yes", "train.py"]) == 2
    assert "--fix" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "code", "text"), [("y", 0, GUARDED), ("n", 1, SCRIPT), ("", 1, SCRIPT)])
def test_on_a_terminal_it_asks(script: Path, answer: str, code: int, text: str) -> None:
    ours, theirs = pty.openpty()
    command = [str(Path(sys.executable).with_name("advisor")), *ONLY, "--fix", "train.py"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | {"NO_COLOR": "1"})
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    said = b""
    while True:
        try:
            said += os.read(ours, 4096)
        except OSError:  # it has left
            break
    os.close(ours)
    assert process.wait(30) == code
    assert b"Write these changes? [y/N]" in said
    assert script.read_text() == text


def test_without_libcst_one_error_says_what_to_install(script: Path, tmp_path: Path) -> None:
    block = "import sys; sys.modules['libcst'] = None; from advisor.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", block, *ONLY, "--fix", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "advisor: --fix edits with LibCST, which is not installed",
        "pip install 'topology-advisor[fix]', or from a checkout: pip install '.[fix]'",
    ]

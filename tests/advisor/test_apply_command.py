"""`advisor apply` from end to end, on CPU processes with gloo."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
PLAIN = """import torch
weight = torch.zeros(2, requires_grad=True)
optimizer = torch.optim.AdamW([weight])
for _ in range(3):
    (torch.randn(4, 2) @ weight).sum().backward()
    optimizer.step()
"""


def advisor(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "advisor", *arguments], capture_output=True, text=True, check=False, cwd=cwd, timeout=300
    )


def test_a_run_nobody_described_is_predicted_from_its_model_and_compared(tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "train_gpt.py")
    done = advisor(
        "apply", "--no-calibrate", "--run-dir", "run", script, "--steps", "12", "--eval-every", "12", cwd=tmp_path
    )
    assert done.returncode == 0
    assert done.stdout.startswith("step 12: loss")
    assert len(done.stdout.splitlines()) == 1
    assert "Predicted against measured" in done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    predicted, measured = report["predicted"]["step_seconds"], report["step"]["median"]
    assert predicted > 0
    assert report["errors"]["step_pct"] == pytest.approx(100 * (predicted / measured - 1), abs=0.1)
    assert {"plan.json", "ranks", "logs"} <= {path.name for path in (tmp_path / "run").iterdir()}


def test_the_scripts_words_output_and_exit_code_pass_through(tmp_path: Path) -> None:
    script = str(ROOT / "fixtures" / "scripts" / "own_arguments.py")
    arguments = ("--help", "--", "--plan", "x", "-q", "--gpus=3")
    alone = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=False)
    done = advisor("apply", "--gpus", "1", "-q", script, *arguments, cwd=tmp_path)
    assert (done.stdout, done.returncode) == (alone.stdout, alone.returncode)
    assert len(done.stderr.splitlines()) == 1


def test_a_plain_script_of_which_nothing_can_be_divided_is_refused_with_the_lines_to_add(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLAIN)
    done = advisor("apply", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "train.py, line 5) uses no batch of a DataLoader" in done.stderr
    assert "DataLoader(torch.utils.data.TensorDataset(x, y)" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "advisor-runs"}

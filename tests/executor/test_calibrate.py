"""Plans chosen by trials of real scripts, with faults planted in them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest

from advisor.executor.calibrate import Task, calibrate
from advisor.executor.report import read_report
from advisor.executor.script import read_script
from advisor.rules.cpu_ranks import cpu_stand_ins
from advisor.rules.machine import Host, Machine
from advisor.rules.script_plan import script_plan
from advisor.rules.trial import Calibrated

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[2] / "fixtures" / "scripts" / "tried.py"
Tries = Callable[..., Calibrated]


@pytest.fixture
def tries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tries:
    """Calibrate the script in an empty folder, on two CPU processes."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def run(*arguments: str, budget: float = 60.0, only: tuple[str, ...] = ()) -> Calibrated:
        machine = cpu_stand_ins(Machine(host=Host(cpus=2)), 2)
        task = Task(
            machine, str(SCRIPT), arguments, read_script(SCRIPT), budget, lambda plan, log: [], lambda plan: True, only
        )
        return calibrate(script_plan(machine, 2), task, tmp_path / "trials")

    return run


def left_over() -> list[int]:
    return [child.pid for child in psutil.Process().children(recursive=True)]


def test_a_slow_plan_loses_and_the_run_is_made_under_the_other(tmp_path: Path) -> None:
    checkpoint = tmp_path / "last.pt"
    checkpoint.write_bytes(b"of an earlier run")
    seen: list[bytes] = []
    home = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = ["apply", "--gpus", "2", "--budget", "60s", "--run-dir", "run", str(SCRIPT)]
    command += ["--replicated", "slow", "--save", "last.pt", "--log", "logs/train.log"]
    process = subprocess.Popen(
        [sys.executable, "-m", "advisor", *command],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=home,
    )
    assert process.stderr is not None
    for line in process.stderr:
        seen.append(line)
        if line.startswith(b"advisor: trial "):
            assert checkpoint.read_bytes() == b"of an earlier run"
            assert not (tmp_path / "logs").exists()
        elif b" trials in " in line:
            break
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, b"trained 2 40\n"), (seen, err)
    report = read_report(tmp_path / "run" / "report.json")
    found = msgspec.json.decode((tmp_path / "run" / "calibration.json").read_bytes(), type=Calibrated)
    assert report.calibrated == found
    assert found.plan.strategy == report.plan.strategy == "fsdp"
    assert found.spent <= found.budget == 60
    assert [trial.purpose for trial in found.trials][:1] == ["as-is"]
    slow = next(row for row in found.tried if row.plan.strategy == "ddp")
    assert slow.timing is not None
    assert slow.timing.median > 0.1
    assert slow.verdict.endswith("x the step time")
    assert report.predicted is None  # a model of another kind than those priced by their shapes
    assert (tmp_path / "logs" / "train.log").read_text() == "started\n"  # by the run, not by a trial
    assert checkpoint.read_bytes() != b"of an earlier run"
    command[command.index("run")] = "second"
    del command[command.index("--budget") : command.index("--budget") + 2]
    again = subprocess.run(
        [sys.executable, "-m", "advisor", *command], cwd=tmp_path, capture_output=True, text=True, check=True, env=home
    )
    assert "by the trials of" in again.stderr
    assert "trial 1" not in again.stderr
    second = read_report(tmp_path / "second" / "report.json")
    assert second.plan == report.plan
    assert second.calibrated is not None
    assert second.calibrated.recalled is not None


@pytest.mark.parametrize(
    ("fault", "outcome", "said"),
    [("hang", "too-long", "stopped"), ("crash", "failed", "planted"), ("out-of-memory", "out-of-memory", "20.00 GiB")],
)
def test_a_fault_under_a_plan_is_a_measurement_of_it(tries: Tries, fault: str, outcome: str, said: str) -> None:
    found = tries("--sharded", fault)
    assert found.plan.strategy == "ddp"
    faults = [trial for trial in found.trials if trial.plan.strategy == "fsdp"]
    assert {trial.outcome for trial in faults} == {outcome}
    assert all(said in str(trial.said) for trial in faults)
    assert {row.timing for row in found.tried if row.plan.strategy == "fsdp"} == {None}
    assert left_over() == []


def test_a_script_that_runs_out_of_memory_as_it_is_gets_a_plan_that_runs(tries: Tries) -> None:
    found = tries("--replicated", "out-of-memory", budget=45.0)
    assert found.trials[0].outcome == "out-of-memory"
    assert found.plan.strategy == "fsdp"
    assert found.tried[0].timing is not None


def test_a_script_that_would_change_a_file_is_not_tried_further(tries: Tries) -> None:
    log = Path("train.log")
    log.write_text("mine\n")
    found = tries("--log", "train.log")
    assert [trial.outcome for trial in found.trials] == ["wants-to-write"]
    assert log.read_text() == "mine\n"
    assert found.plan.strategy == "ddp"
    assert str(log.absolute()) in found.why


def test_a_training_shorter_than_a_trial_is_left_as_it_is(tries: Tries) -> None:
    found = tries("--steps", "3")
    assert [trial.outcome for trial in found.trials] == ["ended-early"]
    assert "too short" in found.why


def test_differences_below_the_noise_leave_the_script_as_it_is(tries: Tries) -> None:
    found = tries("--noise", "0.2", budget=40.0)
    assert found.plan.strategy == "ddp"
    assert found.spent <= 40

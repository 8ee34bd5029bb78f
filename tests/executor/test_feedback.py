"""A run teaches the next prediction on its machine. The runs are two recorded ones of the example on two CPU ranks."""

import shutil
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from advisor.executor import report
from advisor.executor.feedback import learn
from advisor.executor.machine_store import folder, recall
from advisor.executor.observe import observed_of
from advisor.executor.records import read_ranks
from advisor.executor.report import Run
from advisor.rules.cpu_ranks import cpu_stand_ins
from advisor.rules.machine import Host, Machine
from advisor.rules.measurements import calibration_of
from advisor.rules.plan import Launcher, Plan, Predicted
from advisor.rules.proposals import predicted_as_run

RECORDED = Path(__file__).parents[2] / "fixtures" / "runs" / "train-gpt-2-cpu-ranks"
PLAN = Plan(gpus=("CPU0", "CPU1"), strategy="ddp", launcher=Launcher(nproc_per_node=2, device="cpu"))


@pytest.fixture
def machine() -> Machine:
    return cpu_stand_ins(Machine(host=Host(cpu="AMD EPYC", cpus=2, memory_available=24 * 10**9)), 2)


def predict(machine: Machine, name: str) -> Predicted | None:
    """Predict a recorded run by what is kept now."""
    observed = observed_of(read_ranks(RECORDED / name / "ranks")[0])
    assert observed is not None
    return predicted_as_run(PLAN, observed, machine, calibration_of(recall(machine).measurements, "cpu"))


def finished(machine: Machine, name: str, place: Path) -> Run:
    """Return the recorded run as `apply` sums it up."""
    shutil.copytree(RECORDED / name, place / name)
    ranks = tuple(map(report.rank_run, read_ranks(place / name / "ranks")))
    step = max((rank.step for rank in ranks if rank.step), key=lambda step: step.median)
    predicted = predict(machine, name)
    return Run(
        script="examples/train_gpt.py",
        arguments=(),
        folder=str(place / name),
        started="2026-11-30T10:00:00+00:00",
        seconds=60.0,
        exit_code=0,
        plan=PLAN,
        predicted=predicted,
        step=step,
        errors=report.compare(predicted, step, ranks),
        ranks=ranks,
    )


def test_the_second_run_is_predicted_better_than_the_first(machine: Machine, tmp_path: Path) -> None:
    first = finished(machine, "first", tmp_path)
    learn(first, machine)
    second = finished(machine, "second", tmp_path)
    assert first.predicted is not None
    assert first.predicted.correction is None
    assert second.predicted is not None
    assert second.predicted.correction is not None
    assert second.predicted.source == "measured"
    assert first.errors.step_pct is not None
    assert second.errors.step_pct is not None
    assert abs(second.errors.step_pct) < abs(first.errors.step_pct) / 2
    low, high = second.predicted.step_seconds_range
    assert second.step is not None
    assert low < second.step.median < high


def test_what_is_kept_is_the_error_of_the_models_alone(machine: Machine, tmp_path: Path) -> None:
    first = learn(finished(machine, "first", tmp_path / "one"), machine)
    again = learn(finished(machine, "first", tmp_path / "two"), machine)
    assert first is not None
    assert again is not None
    assert again.ratio == pytest.approx(first.ratio)  # though the second was predicted with the first's correction
    kept = recall(machine).measurements
    assert kept is not None
    assert [(run.script, run.strategy, run.device) for run in kept.runs] == 2 * [("train_gpt.py", "ddp", "cpu")]


NEW_THREADS = replace(PLAN, env={"NCCL_SOCKET_NTHREADS": "4"})


@pytest.mark.parametrize(
    "change", [{"exit_code": 1}, {"step": None}, {"plan": NEW_THREADS}], ids=["failed", "no steps", "other settings"]
)
def test_a_run_that_failed_measured_no_step_or_changed_the_links_teaches_nothing(
    machine: Machine, tmp_path: Path, change: dict[str, object]
) -> None:
    assert learn(replace(finished(machine, "first", tmp_path), **change), machine) is None
    assert not folder().exists()


def test_a_cache_that_cannot_be_written_is_one_line(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert learn(finished(machine, "first", tmp_path), machine) is not None
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_a_correction_stands_in_the_stored_report(machine: Machine, tmp_path: Path) -> None:
    learn(finished(machine, "first", tmp_path), machine)
    second = finished(machine, "second", tmp_path)
    report.write_report(tmp_path / "report.json", second)
    assert msgspec.json.decode((tmp_path / "report.json").read_bytes())["predicted"]["correction"]["runs"] == 1

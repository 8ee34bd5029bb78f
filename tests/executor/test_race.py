"""Which trials a budget is spent on and what is made of them, with trials whose lengths are given."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.executor import calibrate, trial_session
from advisor.executor.calibrate import Task, race
from advisor.executor.folder import RunFolder
from advisor.executor.report import WARM_UP_STEPS
from advisor.executor.script import read_script
from advisor.executor.trial_session import Session
from advisor.executor.trials import Request
from advisor.probe.load import load_machine
from advisor.rules.calibration import Calibration
from advisor.rules.machine import Machine
from advisor.rules.observed import Observed
from advisor.rules.plan import Launcher, Plan
from advisor.rules.plan_name import strategy
from advisor.rules.proposals import Proposal
from advisor.rules.trial import Calibrated, Trial

OWN = Plan(gpus=("GPU0", "GPU1"), strategy="ddp", launcher=Launcher(nproc_per_node=2, device="cuda"))
BUCKETS = [Proposal(plan=replace(OWN, bucket_cap_mb=cap), predicted=None) for cap in (5.0, 50.0, 100.0, 200.0)]
H200S = Path(__file__).parents[2] / "fixtures" / "machines" / "2xh200-nv18.json"
START = 2.0  # seconds until a trial's first step
THREADS = {"NCCL_SOCKET_NTHREADS": "4"}
ALLOCATED, USED = 26_800_000_000, 30_000_000_000  # bytes


class Clock:
    """Trials that take what is given, by a clock of their own."""

    forks = None

    def __init__(self, folder: Path, step: float | Callable[[Request], float]) -> None:
        self.now, self._folder, self._step = 0.0, folder, step

    def preload(self, _: Any) -> float:
        return 0.0

    def run(self, request: Request, _: Any) -> tuple[Trial, RunFolder]:
        step = self._step if isinstance(self._step, float) else self._step(request)
        warm = START + WARM_UP_STEPS * step
        steps = (step,) * (request.steps - WARM_UP_STEPS)
        self.now += warm + sum(steps)
        trial = Trial(
            plan=request.plan,
            purpose=request.purpose,
            outcome="measured",
            steps=steps,
            seconds=warm + sum(steps),
            start_seconds=warm,
            peak_allocated=ALLOCATED,
            device_used=USED,
        )
        return trial, RunFolder(self._folder)


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def session(step: float, budget: float) -> Session:
        clock = Clock(tmp_path, step)
        monkeypatch.setattr(trial_session.time, "monotonic", lambda: clock.now)
        found = Session(clock, lambda *_: pytest.fail("nothing is launched"), budget, 0.0)
        found.first(OWN)
        return found

    return session


def test_long_steps_leave_time_for_a_setting_and_short_ones_are_all_tried(sessions: Any) -> None:
    for leaving in (0, 1):
        long = sessions(2.6, 90.0)
        tried, untried = race(long, OWN, BUCKETS, leaving)
        assert {reason for _, reason in untried} == {"no time was left to try it"}
        assert len(tried) == 4 - leaving
        setting = replace(OWN, env=THREADS)
        assert (long.again(setting, "setting", 2.6) is not None) == bool(leaving)
        assert long.spent < 90
    tried, untried = race(sessions(0.05, 90.0), OWN, BUCKETS, leaving=1)
    assert (len(tried), untried) == (5, [])


def test_long_steps_are_measured_less_often(sessions: Any) -> None:
    session = sessions(2.6, 90.0)
    trial = session.again(BUCKETS[0].plan, "candidate", 2.6)
    assert len(session.done[0].steps) == 5
    assert len(trial.steps) == 3


@pytest.fixture
def calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Calibrated]:
    def run(step: Callable[[Request], float], machine: Machine, seen: Observed | None, settings: Any) -> Calibrated:
        clock = Clock(tmp_path, step)

        @contextmanager
        def trials_of(*_: Any) -> Iterator[Clock]:
            yield clock

        monkeypatch.setattr(trial_session.time, "monotonic", lambda: clock.now)
        monkeypatch.setattr(trial_session, "read_ranks", lambda _: [None])
        monkeypatch.setattr(trial_session, "observed_of", lambda _: seen)
        monkeypatch.setattr(calibrate, "trials_of", trials_of)
        monkeypatch.setattr(calibrate, "links_known", lambda *_: Calibration())
        monkeypatch.setattr(calibrate, "plan_launch", lambda *_, **__: None)
        script = tmp_path / "train.py"
        script.write_text("")
        task = Task(
            machine=machine,
            script=str(script),
            arguments=(),
            facts=read_script(str(script)),
            budget=120.0,
            settings=lambda plan, log: settings,
            may_run=lambda _: True,
        )
        return calibrate.calibrate(OWN, task, tmp_path)

    return run


def test_a_setting_is_judged_by_the_plan_without_it(calibrated: Callable[..., Calibrated]) -> None:
    ddp, fsdp, threads = map(itertools.cycle, ((0.17, 0.19), (0.166, 0.176), (0.157, 0.159)))

    def step(request: Request) -> float:
        if request.plan.strategy == "fsdp":
            return 0.3 if request.plan.reshard_after_forward else next(fsdp)
        return next(threads if request.plan.env else ddp)

    found = calibrated(step, Machine(), None, [THREADS])
    assert found.plan == replace(OWN, env=THREADS)
    assert found.why.endswith("by 3 trials; without its NCCL settings it needs 180 ms, 1.15 times as long")
    verdicts = {strategy(row.plan): row.verdict for row in found.tried if row.plan != found.plan}
    assert verdicts["DDP"] == "1.15x the step time"
    assert [trial.plan for trial in found.trials if trial.purpose == "setting"] == [found.plan] * 3


def test_memory_is_predicted_as_trials_had_it(calibrated: Callable[..., Calibrated]) -> None:
    block = {"qkv": (3 * 64, 64), "out": (64, 64), "up": (4 * 64, 64), "down": (64, 4 * 64), "norm": (64,)}
    shapes = {f"blocks.{i}.{name}.weight": shape for i in range(4) for name, shape in block.items()}
    shapes |= {"embedding.weight": (1000, 64), "head.weight": (1000, 64)}
    seen = Observed(parameters=shapes, trainable=330_000, inputs=((8, 128),))
    found = calibrated(lambda _: 0.2, load_machine(str(H200S)), seen, [])
    assert found.predicted is not None
    memory = found.predicted.memory
    assert (memory.total, memory.total - memory.context) == (USED, ALLOCATED)
    parts = memory.parameters + memory.gradients + memory.optimizer + memory.activations + memory.logits
    assert parts + memory.communication == pytest.approx(ALLOCATED, rel=1e-6)

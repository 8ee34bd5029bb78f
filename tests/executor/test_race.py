"""Which trials a budget is spent on, with trials whose lengths are given."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.executor import trial_session
from advisor.executor.calibrate import race
from advisor.executor.folder import RunFolder
from advisor.executor.report import WARM_UP_STEPS
from advisor.executor.trial_session import Session
from advisor.executor.trials import Request
from advisor.rules.plan import Launcher, Plan
from advisor.rules.proposals import Proposal
from advisor.rules.trial import Trial

OWN = Plan(gpus=("GPU0", "GPU1"), strategy="ddp", launcher=Launcher(nproc_per_node=2, device="cuda"))
BUCKETS = [Proposal(plan=replace(OWN, bucket_cap_mb=cap), predicted=None) for cap in (5.0, 50.0, 100.0, 200.0)]
START = 2.0  # seconds until a trial's first step


class Clock:
    """Trials that take what is given, by a clock of their own."""

    def __init__(self, folder: Path, step: float) -> None:
        self.now, self._folder, self._step = 0.0, folder, step

    def run(self, request: Request, _: Any) -> tuple[Trial, RunFolder]:
        warm = START + WARM_UP_STEPS * self._step
        steps = (self._step,) * (request.steps - WARM_UP_STEPS)
        self.now += warm + sum(steps)
        trial = Trial(
            plan=request.plan,
            purpose=request.purpose,
            outcome="measured",
            steps=steps,
            seconds=warm + sum(steps),
            start_seconds=warm,
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
        setting = replace(OWN, env={"NCCL_SOCKET_NTHREADS": "4"})
        assert (long.again(setting, "setting", 2.6) is not None) == bool(leaving)
        assert long.spent < 90
    tried, untried = race(sessions(0.05, 90.0), OWN, BUCKETS, leaving=1)
    assert (len(tried), untried) == (5, [])


def test_long_steps_are_measured_less_often(sessions: Any) -> None:
    session = sessions(2.6, 90.0)
    trial = session.again(BUCKETS[0].plan, "candidate", 2.6)
    assert len(session.done[0].steps) == 5
    assert len(trial.steps) == 3

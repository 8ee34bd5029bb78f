"""Short runs of the real script under a plan, each in processes that are thrown away."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from advisor.executor.advice import OUT_OF_MEMORY
from advisor.executor.folder import RunFolder
from advisor.executor.forked import Forks, forks
from advisor.executor.launch import WORKER, Launch
from advisor.executor.records import RankRecord, read_ranks
from advisor.executor.report import WARM_UP_STEPS
from advisor.rules.machine import Value
from advisor.rules.plan import Plan
from advisor.rules.trial import Outcome, Purpose, Trial


class Request(Value, frozen=True, kw_only=True):
    """What a trial is to do."""

    plan: Plan
    purpose: Purpose
    steps: int  # optimizer steps, warm-up included
    limit: float  # seconds, start included
    env: dict[str, str]  # beside the plan's


class Trials:
    """Runs trials of one script one after the other, forked from a process that holds what the script imports."""

    def __init__(self, script: str, arguments: Sequence[str], forks: Forks) -> None:
        self._script, self._arguments, self.forks = script, arguments, forks

    def preload(self, modules: Sequence[str]) -> float:
        """Import modules once for all trials; return the seconds this took."""
        return float(self.forks.preload(modules)["seconds"])

    def run(self, request: Request, launch_of: Callable[[Plan, RunFolder], Launch]) -> tuple[Trial, RunFolder]:
        """Run one trial; return what came of it, and the folder with its records and logs."""
        folder = self.forks.next_folder()
        launch = launch_of(request.plan, folder)
        marks = folder.path / "marks"
        marks.mkdir()
        folder.plan.write_bytes(msgspec.json.encode(request.plan))
        communication = request.purpose != "no-communication"
        given = {"steps": request.steps, "communication": communication, "marks": str(marks.absolute())}
        environment = launch.environ() | request.env
        environment |= {"ADVISOR_PLAN": str(folder.plan.absolute()), "ADVISOR_TRIAL": json.dumps(given)}
        started = time.monotonic()
        argv = [str(WORKER), self._script, *self._arguments]
        ranks, limit = request.plan.ranks, request.limit
        answer = self.forks.run(argv, ranks, folder, environment, limit, own_gpu=launch.own_gpu)
        clean(marks)
        records = read_ranks(folder.ranks)
        outcome, said = outcome_of(answer, records, folder)
        steps = slowest(records)
        memory = [record.memory for record in records if record.memory is not None]
        trial = Trial(
            plan=request.plan,
            purpose=request.purpose,
            outcome=outcome,
            said=said,
            steps=tuple(steps[WARM_UP_STEPS - 1 :]),
            seconds=time.monotonic() - started,
            start_seconds=max(0.0, time.monotonic() - started - sum(steps)) if steps else None,
            peak_allocated=max((m.peak_allocated for m in memory if m.peak_allocated), default=None),
            device_used=max((m.device_used for m in memory if m.device_used), default=None),
        )
        return trial, folder


@contextlib.contextmanager
def trials_of(script: str, arguments: Sequence[str], folder: Path, launch: Launch) -> Iterator[Trials]:
    """Start the process that trials are forked from; nothing of it or of them is left afterwards."""
    with forks(folder, launch.environ()) as running:
        yield Trials(script, arguments, running)


def outcome_of(
    answer: Mapping[str, Any], records: Sequence[RankRecord], folder: RunFolder
) -> tuple[Outcome, str | None]:
    """Say how a trial ended, and in which words."""
    refused = next((path for record in records for path in record.refused), None)
    if refused is not None:
        return "wants-to-write", f"it would change {refused}, which was there before"
    measured = any(len(record.steps) >= WARM_UP_STEPS for record in records)
    if not any(answer["statuses"]) and not answer["late"]:
        return ("measured" if measured else "ended-early"), None if measured else "it ended after too few steps"
    said = _said(records, folder)
    if OUT_OF_MEMORY.search(said):
        return "out-of-memory", said
    if answer["late"]:
        done = max((len(record.steps) for record in records), default=0)
        return "too-long", f"it was stopped after {answer['seconds']:.0f} s and {done + bool(done)} steps"
    return "failed", said


def slowest(records: Sequence[RankRecord]) -> list[float]:
    """Return the seconds of each step of the rank that needed most, by the device's clock where it has one."""
    each = [[wall if device is None else device for wall, device in record.steps] for record in records]
    return max(each, key=lambda steps: sum(steps) / len(steps) if steps else 0.0, default=[])


def clean(marks: Path) -> None:
    """Remove what a trial has made: the files, then the folders that are empty."""
    made = [Path(mark.read_text()) for mark in marks.iterdir()]
    for path in sorted(made, key=lambda path: len(path.parts), reverse=True):
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()


def _said(records: Sequence[RankRecord], folder: RunFolder) -> str:
    failed = sorted((r.failed for r in records if r.failed is not None), key=lambda failure: failure.time)
    errors = [failure.error for failure in failed]
    if errors:  # the others fail for want of the first
        return next((error for error in errors if OUT_OF_MEMORY.search(error)), errors[0])
    lines = [line for log in sorted(folder.logs.glob("*.err")) for line in log.read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line.strip()), "it said nothing")

"""Short runs of the real script under a plan, each in processes that are thrown away."""

import contextlib
import json
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from advisor.executor.advice import OUT_OF_MEMORY
from advisor.executor.folder import RunFolder
from advisor.executor.launch import WORKER, Launch
from advisor.executor.records import RankRecord, read_ranks
from advisor.executor.report import WARM_UP_STEPS
from advisor.executor.tree import adopt_orphans, descendants, dies_with_us, end_all, reap
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Value
from advisor.rules.plan import Plan
from advisor.rules.trial import Outcome, Purpose, Trial

FORKS = Path(__file__).parent / "bootstrap" / "forks.py"
END_SECONDS = 15.0  # beyond a trial's limit, for the processes to be ended


class Request(Value, frozen=True, kw_only=True):
    """What a trial is to do."""

    plan: Plan
    purpose: Purpose
    steps: int  # optimizer steps, warm-up included
    limit: float  # seconds, start included
    env: dict[str, str]  # beside the plan's


class Trials:
    """Runs trials of one script one after the other, forked from a process that holds what the script imports."""

    def __init__(self, script: str, arguments: Sequence[str], folder: Path, process: subprocess.Popen[str]) -> None:
        self._script, self._arguments, self._folder, self._process = script, arguments, folder, process
        self._count = 0

    def preload(self, modules: Sequence[str]) -> float:
        """Import modules once for all trials; return the seconds this took."""
        return float(self._ask({"do": "preload", "names": list(modules)}, 600.0)["seconds"])

    def run(self, request: Request, launch_of: Callable[[Plan, RunFolder], Launch]) -> tuple[Trial, RunFolder]:
        """Run one trial; return what came of it, and the folder with its records and logs."""
        folder = self._next_folder()
        launch = launch_of(request.plan, folder)
        marks = folder.path / "marks"
        marks.mkdir()
        folder.plan.write_bytes(msgspec.json.encode(request.plan))
        communication = request.purpose != "no-communication"
        given = {"steps": request.steps, "communication": communication, "marks": str(marks.absolute())}
        environment = launch.environ() | request.env
        environment |= {"ADVISOR_PLAN": str(folder.plan.absolute()), "ADVISOR_TRIAL": json.dumps(given)}
        started = time.monotonic()
        answer = self._start(request.plan, folder, environment, [self._script, *self._arguments], request.limit)
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

    def _start(
        self, plan: Plan, folder: RunFolder, environment: Mapping[str, str], argv: Sequence[str], limit: float
    ) -> dict[str, Any]:
        """Fork the ranks of a plan, one host's, and wait for their end; return their exit statuses."""
        ranks = []
        port = free_port()
        for rank in range(plan.ranks):
            world: dict[str, object] = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": plan.ranks,
                "LOCAL_WORLD_SIZE": plan.ranks,
            }
            world |= {"GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            ranks.append(
                {
                    "environment": {**environment, **{name: str(value) for name, value in world.items()}},
                    "out": str(folder.logs.absolute() / f"{rank}.out"),
                    "err": str(folder.logs.absolute() / f"{rank}.err"),
                }
            )
        asked = {"do": "trial", "ranks": ranks, "argv": [str(WORKER), *argv], "limit": limit}
        return self._ask(asked, limit + END_SECONDS)

    def _next_folder(self) -> RunFolder:
        self._count += 1
        folder = RunFolder(self._folder / f"{self._count:02}")
        folder.create()
        return folder

    def _ask(self, asked: Mapping[str, Any], limit: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise AdvisorError(f"the process that starts trials is gone: {error.strerror}", NO_TRIALS) from error
        line = _line_within(self._process, limit)
        if line is None:
            raise AdvisorError("the process that starts trials does not answer", NO_TRIALS)
        answer: dict[str, Any] = json.loads(line)
        return answer


NO_TRIALS = "start without trials: --no-calibrate"


@contextlib.contextmanager
def trials_of(script: str, arguments: Sequence[str], folder: Path, launch: Launch) -> Iterator[Trials]:
    """Start the process that trials are forked from, under a guard; nothing of it or of them is left afterwards."""
    adopt_orphans()
    before = {child.pid for child in descendants()}
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "advisor.executor.guard", str(folder / "forks.err"), sys.executable, str(FORKS)],
        env=launch.environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=dies_with_us(signal.SIGTERM),  # noqa: PLW1509 - no thread runs yet
    )
    try:
        yield Trials(script, arguments, folder, process)
    finally:
        end_all(before)
        process.wait()
        reap()


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


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _said(records: Sequence[RankRecord], folder: RunFolder) -> str:
    failed = sorted((r.failed for r in records if r.failed is not None), key=lambda failure: failure.time)
    errors = [failure.error for failure in failed]
    if errors:  # the others fail for want of the first
        return next((error for error in errors if OUT_OF_MEMORY.search(error)), errors[0])
    lines = [line for log in sorted(folder.logs.glob("*.err")) for line in log.read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line.strip()), "it said nothing")


def _line_within(process: subprocess.Popen[str], seconds: float) -> str | None:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline() or None if ready else None

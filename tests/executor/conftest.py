"""Scripts run by python alone, and under a plan through the executor's one door."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from advisor.executor import report
from advisor.executor.folder import RunFolder
from advisor.executor.forked import Forks, forks
from advisor.executor.launch import WORKER, plan_launch
from advisor.executor.records import read_ranks
from advisor.executor.report import Became, Change, RankRun, Run, read_report
from advisor.executor.script import read_script
from advisor.rules.plan import Launcher, Plan

SCRIPTS = Path(__file__).parents[2] / "fixtures" / "scripts"
DRIVER = Path(__file__).with_name("drive_apply.py")
SECONDS = 120  # far more than anything here takes


def _heed_signals() -> None:
    """Undo what a shell or nohup sets for jobs in the background: they would ignore Ctrl-C, and the tests send it."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@dataclass(frozen=True)
class Result:
    out: str
    err: str
    exit_code: int  # as a shell shows it


@dataclass(frozen=True)
class Forked(Result):
    """What came of ranks that were forked, as a trial's are; output is rank 0's."""

    changes: tuple[Change, ...]
    became: tuple[Became, ...]
    ranks: tuple[RankRun, ...]


class Scripts:
    """Runs scripts of `fixtures/scripts`, in that folder. `folder` is where a run under a plan leaves its files."""

    example = SCRIPTS.parents[1] / "examples" / "train_gpt.py"

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "run"
        self._plan = tmp_path / "given-plan.json"

    @staticmethod
    def plan(ranks: int = 1, **fields: Any) -> Plan:
        usual: dict[str, Any] = {
            "gpus": tuple(f"CPU{i}" for i in range(ranks)),
            "strategy": "single" if ranks == 1 else "ddp",
            "micro_batch": 4,
            "global_batch": 4 * ranks,
            "precision": "fp32",
            "launcher": Launcher(nproc_per_node=ranks, device="cpu", threads_per_rank=1),
        }
        return Plan(**usual | fields)

    def start_alone(self, script: str, *arguments: str) -> subprocess.Popen[bytes]:
        return self._start([sys.executable, "-u", script, *arguments])  # unbuffered, as torchrun starts it

    def start_applied(
        self, script: str, *arguments: str, plan: Plan | None = None, **streams: Any
    ) -> subprocess.Popen[bytes]:
        self._plan.write_bytes(msgspec.json.encode(plan or self.plan()))
        return self._start(
            [sys.executable, str(DRIVER), str(self._plan), str(self.folder), script, *arguments], **streams
        )

    def by_worker(self, script: str, *arguments: str) -> Result:
        """Run it as torchrun would start its only rank, without torchrun."""
        folder = RunFolder(self.folder)
        folder.create()
        folder.plan.write_bytes(msgspec.json.encode(self.plan()))
        rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "ADVISOR_PLAN": str(folder.plan)}
        command = [sys.executable, "-u", str(WORKER), script, *arguments]
        return self.finish(self._start(command, env=os.environ | rank))

    def alone(self, script: str, *arguments: str) -> Result:
        return self.finish(self.start_alone(script, *arguments))

    def applied(self, script: str, *arguments: str, plan: Plan | None = None) -> Result:
        return self.finish(self.start_applied(script, *arguments, plan=plan))

    def finish(self, process: subprocess.Popen[bytes]) -> Result:
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"not over after {SECONDS} s; what runs:\n{self._running()}")
        code = process.returncode
        # Bytes that are no text must survive: latin-1 shows each of them.
        return Result((out or b"").decode("latin-1"), (err or b"").decode("latin-1"), 128 - code if code < 0 else code)

    def forked(self, forks: Forks, script: str, *arguments: str, plan: Plan) -> Forked:
        """Run the ranks under a plan without torchrun, which imports torch anew in each: many CPU seconds."""
        path = str(SCRIPTS / script)
        folder = forks.next_folder()
        folder.plan.write_bytes(msgspec.json.encode(plan))
        launch = plan_launch(plan, path, arguments, folder, facts=read_script(path))
        environment = launch.environ() | {"ADVISOR_PLAN": str(folder.plan)}
        answer = forks.run([str(WORKER), path, *arguments], plan.ranks, folder, environment, SECONDS)
        records = read_ranks(folder.ranks)
        return Forked(
            out=(folder.logs / "0.out").read_text(),
            err=(folder.logs / "0.err").read_text(),
            exit_code=124 if answer["late"] else next((code for code in answer["statuses"] if code), 0),
            changes=report.changes(plan, records),
            became=report.became(records),
            ranks=tuple(map(report.rank_run, records)),
        )

    def report(self) -> Run:
        return read_report(self.folder / "report.json")

    def log(self, name: str) -> str:
        return (self.folder / "logs" / name).read_bytes().decode("latin-1")

    def _running(self) -> str:
        """Say of every process of this test what it does; ranks know the test's folder, others name it."""
        lines = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                told = process.cmdline(), process.environ().get("ADVISOR_PLAN", "")
                if str(self.folder.parent) in str(told):
                    threads = [Path(f"/proc/{process.pid}/task/{t.id}/wchan").read_text() for t in process.threads()]
                    lines.append(f"{process.pid} < {process.ppid()} {process.status()} {threads} {told}")
        return "\n".join(lines)

    @staticmethod
    def _start(command: list[str], **streams: Any) -> subprocess.Popen[bytes]:
        usual = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=SCRIPTS, preexec_fn=_heed_signals, **usual | streams)  # noqa: PLW1509


@pytest.fixture(scope="module")
def ranks_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Make the process that ranks are forked from, with all that building an optimizer imports."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # read as torch is imported
    with forks(tmp_path_factory.mktemp("forks"), environment) as running:
        assert not running.preload(["torch._dynamo"])["failed"]
        yield running


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)

"""Run models under plans by `advisor apply`, and under torchrun alone: losses, weights, step time, memory.

plans.py SECONDS ROWS.jsonl: as many of the trials as fit, on the GPUs that are there (two gloo processes without). The
next trial imports what it needs while one trains. Last line: {"trials", "equal", "failed"}.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

HERE = Path(__file__).parent
LIMIT = 60.0  # seconds of one trial, from its turn on
AHEAD = 2  # trials that import while another trains
ALONE: dict[str, Any] = {}
DDP = {"strategy": "ddp"}
FSDP = {"strategy": "fsdp", "shard_size": 2}
KEPT = FSDP | {"reshard_after_forward": False}
RECOMPUTED = {"activation_checkpointing": "full"}


class Trial(NamedTuple):
    model: str
    options: str
    plan: dict[str, Any]  # empty: torchrun alone


def trials(small: bool) -> list[Trial]:
    """List what is run, the most telling first; small ones for CPUs."""
    gpt, large = ("gpt-2x64", "gpt-3x64") if small else ("gpt-12x768", "gpt-24x1024")
    llama, image = ("llama-2x256", "resnet18") if small else ("llama-16x1024", "resnet50")
    text, more = ("--batch 2 --seq 32", "--batch 1 --seq 32") if small else ("--batch 8", "--batch 8 --bf16")
    images = "--batch 2" if small else "--batch 64"
    every = [ALONE, DDP, DDP | {"bucket_cap_mb": 100.0}, FSDP, KEPT, DDP | {"gradient_dtype": "bf16"}]
    every += [DDP | RECOMPUTED, FSDP | {"cpu_offload": True}, DDP | {"bucket_cap_mb": 5.0}]
    found = [Trial(gpt, text, plan) for plan in every]
    found += [Trial(llama, more, plan) for plan in (ALONE, DDP, FSDP, FSDP | RECOMPUTED, FSDP | {"cpu_offload": True})]
    found += [Trial(image, images, plan) for plan in (ALONE, DDP, FSDP, DDP | {"bucket_cap_mb": 100.0})]
    found += [Trial(gpt, f"{text} --first-gpu", DDP)]
    found += [Trial(large, more, plan) for plan in every]
    accumulated = f"{text} --accumulate 2"
    found += [Trial(gpt, accumulated, plan) for plan in (ALONE, DDP | {"accumulation": 2}, KEPT | {"accumulation": 2})]
    long = f"{more} --steps 60"
    found += [Trial(large, long, plan) for _ in range(3) for plan in (ALONE, DDP | {"gradient_as_bucket_view": False})]
    return found


class Running:
    """A trial whose processes wait for their turn."""

    def __init__(self, trial: Trial, folder: Path) -> None:
        self.trial = trial
        self._folder = folder
        self._go, self._done, self._out = (folder / name for name in ("go", "done", "out"))
        folder.mkdir()
        script = [str(HERE / "train_model.py"), trial.model, *trial.options.split()]
        script += ["--wait-for", str(self._go), "--done", str(self._done)]
        self._process = subprocess.Popen(
            [*self._launcher(), *script],
            stdout=self._out.open("wb"),
            stderr=(folder / "err").open("wb"),
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "8" if torch.cuda.is_available() else "1"},
        )

    def _launcher(self) -> list[str]:
        if not self.trial.plan:
            return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        device = "cuda" if torch.cuda.is_available() else "cpu"
        launcher = {"nproc_per_node": 2, "device": device, "threads_per_rank": 8 if device == "cuda" else 1}
        gpus = [f"{'GPU' if device == 'cuda' else 'CPU'}{i}" for i in range(2)]
        plan = self._folder / "given.json"
        plan.write_text(json.dumps({"gpus": gpus, "launcher": launcher} | self.trial.plan))
        run = ["--run-dir", str(self._folder / "run"), "--plan", str(plan)]
        return [sys.executable, "-m", "advisor", "apply", *run]

    def train(self) -> None:
        """Let it train, and wait until it has or its time is up."""
        self._go.touch()
        end = time.monotonic() + LIMIT
        while not self._done.exists() and self._process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)

    def row(self) -> dict[str, Any]:
        """Return what it measured, once its processes are gone."""
        with_name = {"model": self.trial.model, "options": self.trial.options, "plan": self.trial.plan}
        try:
            code = self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.stop()
            return with_name | {"failed": "time is up"}
        lines = [line for line in self._out.read_text().splitlines() if line.startswith("{")]
        report = self._folder / "run" / "report.json"
        if code != 0 and report.exists():
            return with_name | {"failed": json.loads(report.read_bytes())["failure"]}
        if code != 0 or not lines:
            said = (self._folder / "err").read_text(errors="replace").strip().splitlines()
            return with_name | {"failed": said[-12:]}
        found = with_name | json.loads(lines[0])
        if report.exists():
            run = json.loads(report.read_bytes())
            predicted, ranks = run["predicted"] or {}, run["ranks"]
            found |= {"changes": run["changes"], "predicted_seconds": predicted.get("step_seconds")}
            found |= {
                "predicted_range": predicted.get("step_seconds_range"),
                "predicted_memory": predicted.get("memory"),
            }
            found["allocated"] = max((rank["peak_allocated"] or 0 for rank in ranks), default=0)
            found["median_seconds"] = (run["step"] or {}).get("median")
        return found

    def stop(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)


def difference(one: list[float], other: list[float]) -> float:
    """Return the largest relative difference of two lists of numbers."""
    return max((abs(a - b) / max(abs(b), 1e-12) for a, b in zip(one, other, strict=True)), default=0.0)


def main() -> None:
    seconds, target = float(sys.argv[1]), Path(sys.argv[2])
    end = time.monotonic() + seconds
    waiting = trials(small=not torch.cuda.is_available())
    started: list[Running] = []
    ended: list[Running] = []
    alone: dict[tuple[str, str], dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary, target.open("w") as file:
        try:
            while (started or waiting) and time.monotonic() < end:
                while waiting and len(started) <= AHEAD:
                    started.append(Running(waiting.pop(0), Path(temporary) / str(len(waiting))))
                current = started.pop(0)
                current.train()
                ended.append(current)
                if len(ended) > 1 or not started:  # the end of the processes before is awaited while this one trains
                    rows += write(ended.pop(0).row(), alone, file)
            while ended:
                rows += write(ended.pop(0).row(), alone, file)
        finally:
            for running in [*started, *ended]:
                running.stop()
    judged = [row for row in rows if "losses_differ" in row]
    equal = [row for row in judged if row["losses_differ"] < 1e-3]
    failed = [row for row in rows if "failed" in row]
    print(json.dumps({"trials": len(rows), "equal": len(equal), "of": len(judged), "failed": len(failed)}))


def write(row: dict[str, Any], alone: dict[tuple[str, str], dict[str, Any]], file: Any) -> list[dict[str, Any]]:
    """Compare a row with that of torchrun alone, write and print it."""
    row["date"] = datetime.now(UTC).strftime("%Y-%m-%d")
    options = row["options"].replace(" --first-gpu", "")
    if not row["plan"]:
        alone.setdefault((row["model"], options), dict(row))
    base = alone.get((row["model"], options))
    if base is not None and "losses" in row and "losses" in base:
        row["losses_differ"] = difference(row["losses"], base["losses"])
        row["norms_differ"] = difference(row["norms"], base["norms"])
    row.pop("norms", None)
    file.write(json.dumps(row) + "\n")
    file.flush()
    told = {k: v for k, v in row.items() if k in ("seconds", "losses_differ", "norms_differ", "allocated", "failed")}
    print(row["model"], row["options"], row["plan"], told, flush=True)
    return [row]


if __name__ == "__main__":
    main()

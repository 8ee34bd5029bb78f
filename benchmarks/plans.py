"""Run models under plans by `advisor apply`, and under torchrun alone: losses, weights, step time, memory.

plans.py SECONDS ROWS.jsonl: as many of the trials as fit, on the GPUs that are there (two gloo processes without). The
next trial imports what it needs while one trains. With --overhead N, instead, N pairs of each model under DDP: torchrun
alone and `apply`, with nothing beside them; --ranks 1 makes both on one GPU. Last line: one JSON object.
"""

import argparse
import json
import os
import signal
import statistics
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
    return found


def pairs(small: bool, rounds: int) -> list[Trial]:
    """List what tells the overhead of `apply`: of a large step, and of one that waits for Python."""
    gpt, host_bound = ("gpt-2x64", "gpt-4x32") if small else ("gpt-24x1024", "gpt-12x256")
    sizes = [(gpt, "--batch 2 --seq 32" if small else "--batch 8 --bf16"), (host_bound, "--batch 1 --seq 32")]
    sizes += [] if small else [("resnet50", "--batch 64")]
    same = DDP | {"gradient_as_bucket_view": False}
    every = [(model, f"{options} --steps 100") for model, options in sizes]
    return [Trial(*each, plan) for _ in range(rounds) for each in every for plan in (ALONE, same)]


class Running:
    """A trial whose processes wait for their turn."""

    def __init__(self, trial: Trial, folder: Path, ranks: int) -> None:
        self.trial, self._ranks = trial, ranks
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
            return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self._ranks}"]
        device = "cuda" if torch.cuda.is_available() else "cpu"
        launcher = {"nproc_per_node": self._ranks, "device": device, "threads_per_rank": 8 if device == "cuda" else 1}
        gpus = [f"{'GPU' if device == 'cuda' else 'CPU'}{i}" for i in range(self._ranks)]
        plan = self._folder / "given.json"
        plan.write_text(json.dumps({"gpus": gpus, "launcher": launcher} | self.trial.plan))
        run = ["--run-dir", str(self._folder / "run"), "--plan", str(plan)]
        return [sys.executable, "-P", "-m", "advisor", "apply", *run]

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


def overhead(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return by how many per cent a step under `apply` is longer than under torchrun, the median of a model's pairs."""
    seconds: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        if "seconds" in row:
            seconds.setdefault(f"{row['model']} {row['options']}", ([], []))[bool(row["plan"])].append(row["seconds"])
    return {
        model: round(100 * statistics.median(b / a - 1 for a, b in zip(alone, ours, strict=False)), 2)
        for model, (alone, ours) in seconds.items()
        if alone and ours
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("seconds", type=float)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", help="trials with one of these, comma-separated, in model and options")
    parser.add_argument("--overhead", type=int, metavar="N", help="only N pairs of `apply` and torchrun")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    small = not torch.cuda.is_available()
    waiting = trials(small) if args.overhead is None else pairs(small, args.overhead)
    if args.only is not None:
        waiting = [one for one in waiting if any(name in f"{one.model} {one.options}" for name in args.only.split(","))]
    ahead = AHEAD if args.overhead is None else 0
    started: list[Running] = []
    ended: list[Running] = []
    alone: dict[tuple[str, str], dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary, args.rows.open("w") as file:
        try:
            while (started or waiting) and time.monotonic() < end:
                while waiting and len(started) <= ahead:
                    started.append(Running(waiting.pop(0), Path(temporary) / str(len(waiting)), args.ranks))
                current = started.pop(0)
                current.train()
                ended.append(current)
                # Unless one is timed alone, the end of the processes before is awaited while the next trains.
                if len(ended) > (ahead > 0) or not started:
                    rows += write(ended.pop(0).row(), alone, file)
            while ended:
                rows += write(ended.pop(0).row(), alone, file)
        finally:
            for running in [*started, *ended]:
                running.stop()
    judged = [row for row in rows if "losses_differ" in row]
    equal = [row for row in judged if row["losses_differ"] < 1e-3]
    failed = [row for row in rows if "failed" in row]
    told = {"trials": len(rows), "equal": len(equal), "of": len(judged), "failed": len(failed)}
    print(json.dumps(told if args.overhead is None else told | {"overhead_pct": overhead(rows)}))


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

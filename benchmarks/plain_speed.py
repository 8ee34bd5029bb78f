"""Plain scripts under our hooks: on several ranks against DDP written by hand, on one against the script alone.

    python benchmarks/plain_speed.py ROWS.jsonl [--device cuda] [--ranks 1,2] [--models tiny,gpt] [--pairs 5]

Pairs of trials, one after the other, each in processes of its own with a time limit. A row is written as each ends. The
last line printed has the medians of the pairs' ratios, by the clock and of what the host computes; where others share
the machine only the latter tells something. `plain` is what `advisor apply` starts on several ranks, `hooks` what it
starts on one, `plain hooks` all that is done to a plain script, on one rank.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from advisor.executor.folder import RunFolder
from advisor.executor.forked import free_port
from advisor.executor.launch import WORKER, plain_environment
from advisor.rules.plan import Launcher, Plan

TRAIN = Path(__file__).with_name("plain_speed_train.py")
# What is compared with what, by the number of ranks.
ALONE = (("hooks", "alone"), ("plain hooks", "alone"))
TOGETHER = (("plain", "ddp"),)


def plan_of(ranks: int, device: str) -> Plan:
    gpus = tuple(f"{'CPU' if device == 'cpu' else 'GPU'}{i}" for i in range(ranks))
    launcher = Launcher(nproc_per_node=ranks, device="cpu" if device == "cpu" else "cuda", threads_per_rank=1)
    return Plan(gpus=gpus, strategy="single" if ranks == 1 else "ddp", precision="fp32", launcher=launcher)


def trial(what: str, ranks: int, args: argparse.Namespace, model: str) -> dict[str, Any]:
    """Run the ranks of one trial; return rank 0's answer, or why there is none."""
    argv = [str(TRAIN), model, args.device, str(args.steps), *(["ddp"] if what == "ddp" else [])]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="plain-speed-") as place:
        environment = dict(os.environ)
        if what not in ("alone", "ddp"):
            folder = RunFolder(Path(place) / "run")
            folder.create()
            folder.plan.write_bytes(msgspec.json.encode(plan_of(ranks, args.device)))
            environment |= {"ADVISOR_PLAN": str(folder.plan)}
            environment |= {} if what == "hooks" else plain_environment(seed=0)
            argv = [str(WORKER), *argv]
        port, processes = free_port(), []
        for rank in range(ranks):
            world = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": 0}
            world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": args.threads}
            world |= {"CUDA_VISIBLE_DEVICES": rank if args.device == "cuda" else ""}
            env = environment | {name: str(value) for name, value in world.items()}
            with (Path(place) / f"{rank}.out").open("wb") as out, (Path(place) / f"{rank}.err").open("wb") as err:
                command = [sys.executable, "-u", *argv]
                processes.append(subprocess.Popen(command, env=env, stdout=out, stderr=err, start_new_session=True))
        row = {"what": what, "ranks": ranks, "device": args.device, "model": model}
        try:
            for process in processes:
                process.wait(max(0.1, started + args.limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            return row | {"failed": f"not done within {args.limit:.0f} s"}
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        lines = (Path(place) / "0.out").read_text().splitlines()
        if any(process.returncode for process in processes) or not lines:
            said = [line for rank in range(ranks) for line in (Path(place) / f"{rank}.err").read_text().splitlines()]
            return row | {"failed": next((line for line in reversed(said) if line.strip()), "it said nothing")}
        return row | json.loads(lines[-1]) | {"seconds": time.monotonic() - started}


def pairs(ranks: int, args: argparse.Namespace, model: str) -> Iterator[dict[str, Any]]:
    """Run pairs of trials, the first and the second of a pair in turns; yield each row."""
    for number in range(args.pairs):
        for one, other in ALONE if ranks == 1 else TOGETHER:
            for what in (one, other) if number % 2 else (other, one):
                yield trial(what, ranks, args, model) | {"pair": number, "of": f"{one} / {other}"}


def medians(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the ratios of each comparison, of seconds by the clock and of the host's."""
    for key in dict.fromkeys((row["of"], row["ranks"], row["model"]) for row in rows):
        mine = [row for row in rows if (row["of"], row["ranks"], row["model"]) == key and "failed" not in row]
        one, other = ({row["pair"]: row for row in mine if row["what"] == what} for what in key[0].split(" / "))
        found: dict[str, Any] = dict(zip(("of", "ranks", "model"), key, strict=True))
        for seconds in ("step_seconds", "host_seconds"):
            ratios = sorted(one[pair][seconds] / other[pair][seconds] for pair in one.keys() & other.keys())
            if ratios:
                sides = [statistics.median(row[seconds] for row in side.values()) for side in (one, other)]
                found[seconds] = {"ratio": round(statistics.median(ratios), 4), "of": [round(s, 7) for s in sides]}
                found[seconds]["ratios"] = [round(ratio, 4) for ratio in ratios]
        yield found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--models", default="tiny,gpt")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of one trial")
    args = parser.parse_args()
    rows = []
    with args.rows.open("a") as file:
        for model in args.models.split(","):
            for ranks in map(int, args.ranks.split(",")):
                for row in pairs(ranks, args, model):
                    rows.append(row)
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                    shown = row.get("failed") or f"{1e3 * row['step_seconds']:.3f} ms a step"
                    shown += "" if "failed" in row else f", {1e3 * row['host_seconds']:.3f} of the host"
                    print(f"{model} on {ranks} {args.device}, {row['what']}: {shown}", flush=True)
    print(json.dumps({"device": args.device, "comparisons": list(medians(rows))}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measure every plan of a model on this machine, let `advisor apply` pick within its budget, and compare.

Run: python benchmarks/exhaustive.py ROWS.jsonl [--budget 120] [--rounds 3] [--ranks N] MODEL[:OPTION...] ...: models
and options of train_model.py, such as "gpt-12x768:--batch 8:--bf16". Every plan runs once in each round, so that what
drifts touches all. A row for each plan, which accuracy.py and regret.py read too, and one for each pick; the last line
is a JSON object: regret in per cent of the best measured plan, of the pick and of two fixed policies.
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from train_model import architecture, is_language_model, parameters, parse_args

from advisor.commands.apply import proposed_settings
from advisor.commands.recommend import with_devices
from advisor.executor.calibrate import Task, calibrate
from advisor.executor.folder import RunFolder
from advisor.executor.launch import Launch, plan_launch
from advisor.executor.script import read_script
from advisor.executor.script_imports import packages_of
from advisor.executor.trials import Request, trials_of
from advisor.probe.live.machine import probe_live
from advisor.rules.catalog import RULES
from advisor.rules.plan import Plan
from advisor.rules.plan_name import strategy
from advisor.rules.proposals import HALF_WEIGHTS
from advisor.rules.script_plan import script_plan
from advisor.rules.trial import Calibrated, Purpose, Trial

SCRIPT = str(Path(__file__).with_name("train_model.py"))
STEPS = 15
LIMIT = 90.0  # seconds of one run
MEMORY = ("peak_allocated", "device_used")
BUCKETS_MB = (None, 5.0, 100.0)
POLICIES = {"always DDP": "DDP", "always FSDP": "FSDP"}


def grid(own: Plan, allow: Sequence[str]) -> Iterator[Plan]:
    """Yield every plan of the script's batches: buckets of DDP, each size of shards, recomputed or not."""
    precisions = ("bf16-autocast", "bf16-params") if HALF_WEIGHTS in allow else ("bf16-autocast",)
    sizes = [size for size in range(2, own.ranks + 1) if own.ranks % size == 0]
    for recomputed in ("none", "full"):
        for cap in BUCKETS_MB:
            yield replace(own, activation_checkpointing=recomputed, bucket_cap_mb=cap)
        for size, reshard, precision in itertools.product(reversed(sizes), (True, False), precisions):
            yield replace(
                own,
                strategy="fsdp" if size == own.ranks else "hsdp",
                shard_size=size,
                reshard_after_forward=reshard,
                activation_checkpointing=recomputed,
                precision=precision,
            )


def measure(task: Task, plans: Sequence[Plan], folder: Path, rounds: int) -> list[list[Trial]]:
    """Return each plan's runs, and last those of the script's own plan without communication.

    A plan that did not run to its end has one run.
    """
    arguments = task.arguments

    def launch(plan: Plan, place: RunFolder) -> Launch:
        return plan_launch(plan, SCRIPT, arguments, place, machine=task.machine, facts=task.facts)

    wanted: list[tuple[Plan, Purpose]] = [*((plan, "candidate") for plan in plans), (plans[0], "no-communication")]
    runs: list[list[Trial]] = [[] for _ in wanted]
    with trials_of(SCRIPT, arguments, folder, launch(plans[0], RunFolder(folder))) as trials:
        trials.preload(packages_of(SCRIPT))
        for _ in range(rounds):
            for (plan, purpose), before in zip(wanted, runs, strict=True):
                if all(trial.outcome == "measured" for trial in before):
                    request = Request(plan=plan, purpose=purpose, steps=STEPS, limit=LIMIT, env={})
                    before.append(trials.run(request, launch)[0])
    return runs


def medians_of(runs: Sequence[Trial]) -> list[float]:
    return [statistics.median(trial.steps) for trial in runs if trial.outcome == "measured"]


def step_row(words: Sequence[str], plan: Plan, runs: Sequence[Trial]) -> dict[str, Any]:
    """Return a row in the format of benchmarks/data/h200x2-steps.jsonl."""
    args = parse_args(words)
    medians, steps = medians_of(runs), sorted(step for trial in runs for step in trial.steps)
    alone = runs[0].purpose == "no-communication"
    options = {
        "bucket": plan.bucket_cap_mb,
        "shard": plan.shard_size if plan.strategy == "hsdp" else None,
        "reshard": None if plan.reshard_after_forward else 0,
        "ckpt": None if plan.activation_checkpointing == "none" else 1,
        "accum": args.accumulate if args.accumulate > 1 else None,
    }
    row: dict[str, Any] = {
        "kind": "step" if medians else "oom" if runs[0].outcome == "out-of-memory" else "failed",
        "gpus": plan.ranks,
        "model": args.model,
        "micro_batch": args.batch,
        "seq": args.seq if is_language_model(args.model) else None,
        "strategy": "none" if alone else plan.strategy,
        "options": {name: f"{value:g}" for name, value in options.items() if value is not None and not alone},
        "precision": plan.precision if args.bf16 else "fp32",
        "arch": architecture(args.model, args.seq),
        "params": parameters(args.model, args.seq),
    }
    if medians:
        row |= {"step_ms": 1e3 * statistics.median(medians), "step_ms_all": [round(1e3 * step, 3) for step in steps]}
    if not alone:
        row |= {name: max(found) for name in MEMORY if (found := [m for t in runs if (m := getattr(t, name))])}
    return {name: value for name, value in row.items() if value is not None}


def regret(chosen: Plan, plans: Sequence[Plan], medians: Sequence[Sequence[float]]) -> float | None:
    """Return by how many per cent the chosen plan's step is longer than the best; None for a plan outside the grid."""
    best = min(statistics.median(runs) for runs in medians if runs)
    mine = [runs for plan, runs in zip(plans, medians, strict=True) if runs and name(plan) == name(chosen)]
    return 100 * (statistics.median(mine[0]) / best - 1) if mine else None


def name(plan: Plan) -> str:
    half = ", bf16 weights" if plan.precision == "bf16-params" else ""
    settings = " ".join(f"{key}={value}" for key, value in plan.env.items() if key != "NCCL_DEBUG")
    return f"{strategy(plan)}{half} {settings}".strip()


def rows_of(task: Task, own: Plan, rounds: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Measure one model; return a row for each plan, and that of the pick."""
    plans = list(grid(own, task.allow))
    with tempfile.TemporaryDirectory() as folder:
        picked: Calibrated = calibrate(own, task, Path(folder) / "pick")
        if all(name(plan) != name(picked.plan) for plan in plans):
            plans.append(picked.plan)  # with a setting that the grid has not
        *runs, alone = measure(task, plans, Path(folder) / "grid", rounds)
    medians = [medians_of(trials) for trials in runs]
    every = [
        step_row(task.arguments, plan, trials) | {"plan": name(plan), "medians": [round(one, 6) for one in found]}
        for plan, trials, found in zip(plans, runs, medians, strict=True)
    ]
    every.append(step_row(task.arguments, own, alone))
    found = {
        "kind": "pick",
        "gpus": own.ranks,
        "model": " ".join(task.arguments),
        "picked": name(picked.plan),
        "why": picked.why,
        "trials": len(picked.trials),
        "seconds": round(picked.spent, 1),
        "regret_pct": regret(picked.plan, plans, medians),
    }
    fixed = {policy: next(plan for plan in plans if name(plan) == words) for policy, words in POLICIES.items()}
    return every, found | {"policies": {policy: regret(plan, plans, medians) for policy, plan in fixed.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--budget", type=float, default=120.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--allow", nargs="*", default=[], metavar="NAME", help=f"such as {HALF_WEIGHTS}")
    parser.add_argument("--transport", default="", help="a name for how the GPUs talk, written into the rows")
    args = parser.parse_args()
    machine = with_devices(probe_live(), args.ranks)
    own, settings = script_plan(machine, args.ranks), proposed_settings(machine, RULES)
    head = {"date": datetime.now(UTC).date().isoformat(), "torch": version("torch"), "transport": args.transport}
    picks = []
    for words in args.models:
        arguments = tuple(part for word in words.split(":") for part in word.split())
        task = Task(
            machine=machine,
            script=SCRIPT,
            arguments=(*arguments, "--steps", "1000"),
            facts=read_script(SCRIPT),
            budget=args.budget,
            settings=settings,
            may_run=lambda _: True,
            allow=tuple(args.allow),
        )
        started = time.monotonic()
        every, picked = rows_of(task, own, args.rounds)
        with args.rows.open("a") as file:
            for row in (*every, picked):
                file.write(json.dumps(head | row) + "\n")
        picks.append(picked)
        print(
            f"{words}: {picked['picked']}, regret {picked['regret_pct']} %, {time.monotonic() - started:.0f} s in all"
        )
    found = [pick["regret_pct"] for pick in picks if pick["regret_pct"] is not None]
    policies = {
        policy: [pick["policies"][policy] for pick in picks if pick["policies"][policy] is not None]
        for policy in POLICIES
    }
    last = {
        "groups": len(found),
        "regret_mean_pct": round(statistics.mean(found), 2) if found else None,
        "regret_max_pct": round(max(found), 2) if found else None,
        "seconds_max": max(pick["seconds"] for pick in picks),
        "trials_mean": statistics.mean(pick["trials"] for pick in picks),
        "policies": {policy: round(statistics.mean(values), 1) for policy, values in policies.items() if values},
    }
    print(json.dumps(last))


if __name__ == "__main__":
    main()

"""Read measured steps, and predict each with and without what was measured beside it.

Formats: JSON lines of `kind` step and comm as in benchmarks/data/h200x2-steps.jsonl (benchmarks/README.md describes
their fields), and the CSV files of A100 clusters that VIA-Research/vTrain publishes.
"""

import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from megatron import Run, runs

from advisor.commands.model import trace_model
from advisor.rules.calibration import Calibration, Floor, MeasuredGroup, measured_collective
from advisor.rules.cost import Costs
from advisor.rules.errors import AdvisorError
from advisor.rules.fabric import Collective, Op
from advisor.rules.hardware import gpu_model
from advisor.rules.job import Architecture, Job, assume_architecture
from advisor.rules.links import with_link_bandwidths
from advisor.rules.machine import Gpu, Host, Link, Machine
from advisor.rules.plan import Plan, Predicted
from advisor.rules.profile import Profile

HERE = Path(__file__).parent
TRANSPORT = {
    "nvlink": {},
    "shm": {"NCCL_P2P_DISABLE": "1"},
    "socket": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
}
OPS: tuple[Op, ...] = ("all_reduce", "all_gather", "reduce_scatter")
SEQ = {"bert": 512}  # tokens, where a row has none: by the first part of the model's name
COMMUNICATOR = {"nvlink": 870e6, "shm": 390e6, "socket": 390e6}  # bytes; also rows of strategy `none` had one


# Measured collectives by transport, settings and GPUs.
Collectives = dict[tuple[str, tuple[str, ...], int], dict[Op, Collective]]


class Row(NamedTuple):
    """One measured step and what it was of."""

    group: tuple[Any, ...]  # rows that may be compared: transport, settings, model, micro-batch, accumulation, GPUs
    label: str
    machine: Machine
    job: Job
    plan: Plan
    seconds: float | None  # None: it ran out of memory
    allocated: int | None  # bytes, the allocator's peak
    used: int | None  # bytes, as the driver showed
    floor: bool  # a process alone, without communication
    own_context: float  # bytes that such a process had beside what the plan says
    own_costs: Callable[[], Predicted] | None = None  # of a program that is no plain PyTorch

    def costs(self, calibration: Calibration | None = None) -> Predicted:
        """Predict the step from data sheets, or from what was measured."""
        if self.own_costs is not None:
            return self.own_costs()
        found = Costs(self.job, self.machine, calibration)
        return found.predict(self.plan, found.memory(self.plan))


def read(paths: Iterable[str]) -> tuple[list[Row], Collectives]:
    """Return the steps of all files, and the measured collectives."""
    rows: list[Row] = []
    points: dict[Any, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in map(Path, paths):
        if path.suffix == ".csv":
            rows += map(_a100, runs(path))
            continue
        entries = [json.loads(line) for line in filter(str.strip, path.read_text().splitlines())]
        _trace_together([entry for entry in entries if entry["kind"] in ("step", "oom") and not entry.get("arch")])
        for entry in entries:
            if entry["kind"] == "comm" and entry["op"] in OPS:
                key = (entry["transport"], tuple(sorted(entry.get("env", ()))), entry.get("gpus", 2))
                points[key, entry["op"]][entry["bytes"]].append(entry["us"] * 1e-6)
            elif entry["kind"] in ("step", "oom"):
                rows.append(_h200(entry))
    collectives: Collectives = defaultdict(dict)
    for (key, op), sizes in points.items():
        found = [(float(size), statistics.median(times)) for size, times in sizes.items()]
        collectives[key][op] = measured_collective(op, key[2], found)
    return rows, {key: ops for key, ops in collectives.items() if len(ops) == len(OPS)}


def calibration_of(row: Row, rows: Sequence[Row], collectives: Collectives) -> Calibration:
    """Return what the files measured for a row: the steps of its model without communication, and its collectives."""
    transport, env, model, *_ = row.group
    floors = [other for other in rows if other.floor and other.seconds and other.group[2] == model]
    same = [other for other in floors if other.group[0] == transport] or floors
    gpus = tuple(gpu.id for gpu in row.machine.gpus)
    measured = collectives.get((transport, env, len(gpus)), {})
    return Calibration(
        floors=tuple(Floor(micro_batch=o.plan.samples, seconds=o.seconds or 0.0) for o in same),
        groups=(MeasuredGroup(gpus=gpus, nodes=row.machine.nodes, collectives=measured),) if measured else (),
    )


def _h200(entry: dict[str, Any]) -> Row:
    options = entry["options"]
    accumulation = int(options.get("accum", 1))
    strategy = entry["strategy"]
    alone, sharded = strategy == "none", strategy in ("fsdp", "hsdp")
    there = entry.get("gpus", 2)
    gpus = tuple(f"GPU{i}" for i in range(1 if alone else there))
    env = tuple(sorted(entry.get("env", ())))
    job = _job(entry, len(gpus) * accumulation * entry["micro_batch"])
    plan = Plan(
        gpus=gpus,
        strategy="single" if alone else strategy,
        shard_size=int(options.get("shard", there)) if sharded else 1,
        reshard_after_forward=options.get("reshard") != "0",
        micro_batch=entry["micro_batch"],
        accumulation=accumulation,
        sync_each_micro_batch=options.get("nosync") == "0",
        global_batch=job.global_batch,
        precision=entry.get("precision", "bf16-params" if sharded else "bf16-autocast"),
        activation_checkpointing="full" if options.get("ckpt") == "1" else "none",
        gradient_dtype="bf16" if options.get("rd") == "16" or options.get("hook") == "bf16" else "fp32",
        bucket_cap_mb=float(options.get("bucket", 25)),
        gradient_as_bucket_view=options.get("gabv") != "0",
    )
    transport = entry["transport"]
    words = " ".join([strategy, *(f"{name}={value}" for name, value in options.items()), *env])
    return Row(
        group=(transport, env, entry["model"], entry["micro_batch"], accumulation, there),
        label=f"{transport:7}{entry['model']:14}{words}",
        machine=_h200s(there, transport, env),
        job=job,
        plan=plan,
        seconds=entry["step_ms"] / 1e3 if entry["kind"] == "step" else None,
        allocated=entry.get("peak_allocated"),
        used=entry.get("device_used"),
        floor=alone,
        own_context=COMMUNICATOR[transport] if alone and entry.get("communicator", True) else 0.0,
    )


@cache
def _h200s(count: int, transport: str, env: tuple[str, ...]) -> Machine:
    model = gpu_model("H200")
    assert model is not None
    gpus = tuple(
        Gpu(id=f"GPU{i}", index=i, name=model.name, memory=model.memory, compute_capability=model.compute_capability)
        for i in range(count)
    )
    links = tuple(Link(a=a.id, b=b.id, code="NV18", kind="nvlink") for a, b in combinations(gpus, 2))
    environment = TRANSPORT[transport] | dict(setting.split("=", 1) for setting in env)
    host = Host(cpus=16 * count, cpu_vendor="GenuineIntel", cpu_family=6, cpu_model_number=207)
    return with_link_bandwidths(Machine(gpus=gpus, links=links, host=host, environment=environment))


def _job(entry: dict[str, Any], global_batch: int) -> Job:
    """Return the row's model: by its sizes where they are given, else traced, else one of as many parameters."""
    params, arch = entry["params"], entry.get("arch")
    profiles: tuple[Profile, ...] = ()
    if arch:
        architecture, seq = _decoder(entry["model"], arch), arch["seq"]
    else:
        seq = _tokens(entry)
        architecture, profiles = None, _profiles(entry["model"], seq)
        if not profiles:
            architecture, assumed = assume_architecture(params)
            seq = seq or assumed
    return Job(
        params=params,
        trainable_params=params,
        architecture=architecture,
        seq=seq or 1,
        global_batch=global_batch,
        profiles=profiles,
    )


def _tokens(entry: dict[str, Any]) -> int | None:
    return entry.get("seq") or next((n for name, n in SEQ.items() if entry["model"].startswith(name)), None)


def _trace_together(entries: Sequence[dict[str, Any]]) -> None:
    """Trace the models of rows, two processes for each processor at a time: `_profiles` has them then."""
    models = dict.fromkeys((entry["model"], _tokens(entry)) for entry in entries)
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        list(pool.map(lambda model: _profiles(*model), models))


def _decoder(name: str, arch: dict[str, Any]) -> Architecture:
    """Return a GPT (LayerNorm, GELU, 4 h, learned positions, untied head), or a Llama where the row says so."""
    llama = "llama" in name.lower() or "kv_heads" in arch
    ffn = arch.get("ffn") or arch.get("intermediate")
    return Architecture(
        layers=arch["layers"],
        hidden=arch["hidden"],
        heads=arch["heads"],
        kv_heads=arch.get("kv_heads", arch["heads"]),
        ffn=ffn or (256 * -(-8 * arch["hidden"] // 3 // 256) if llama else 4 * arch["hidden"]),
        vocab=arch["vocab"],
        gated_mlp=llama,
        rmsnorm=llama,
        learned_positions=not llama,
        tied_embeddings=bool(arch.get("tied", False)),
    )


@cache
def _profiles(name: str, seq: int | None) -> tuple[Profile, ...]:
    """Trace a model of benchmarks/zoo.py; nothing where that fails."""
    try:
        return trace_model(f"zoo:{name}", precisions=("bf16-autocast", "bf16-params"), seq=seq, folder=HERE)
    except AdvisorError as error:
        print(f"{name}: {error.message}; formulas are used", file=sys.stderr)
        return ()


def _a100(run: Run) -> Row:
    group = ("nvswitch", (), run.label.split(" batch")[0], run.plan.micro_batch, run.plan.accumulation)
    return Row(group, run.label, run.machine, run.job, run.plan, run.seconds, None, None, False, 0.0, run.costs)

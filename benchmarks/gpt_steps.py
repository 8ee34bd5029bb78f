"""Predicted against measured steps of GPTs, from data-sheet facts alone: python benchmarks/gpt_steps.py [FILE...].

Reads rows in the format of benchmarks/data/h200x2-steps.jsonl (see benchmarks/README.md), takes those with an `arch`
and no further NCCL settings, and prints a table; the last line is a JSON object of errors in percent.
"""

import json
import statistics
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from advisor.rules.cost import Costs
from advisor.rules.hardware import gpu_model
from advisor.rules.job import Architecture, Job
from advisor.rules.links import with_link_bandwidths
from advisor.rules.machine import Gpu, Host, Link, Machine
from advisor.rules.plan import Plan, Predicted

ROWS = Path(__file__).parent / "data" / "h200x2-steps.jsonl"
TRANSPORT = {
    "nvlink": {},
    "shm": {"NCCL_P2P_DISABLE": "1"},
    "socket": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
}


def machine_of(row: dict[str, Any]) -> Machine:
    """Return the two H200 as the row used them."""
    model = gpu_model("H200")
    assert model is not None
    gpus = tuple(
        Gpu(id=f"GPU{i}", index=i, name=model.name, memory=model.memory, compute_capability=model.compute_capability)
        for i in range(2)
    )
    links = tuple(Link(a=a.id, b=b.id, code="NV18", kind="nvlink") for a, b in combinations(gpus, 2))
    environment = dict(TRANSPORT[row["transport"]])
    return with_link_bandwidths(Machine(gpus=gpus, links=links, host=Host(cpus=32), environment=environment))


def job_of(row: dict[str, Any], ranks: int, accumulation: int) -> Job:
    """Return the row's GPT: LayerNorm, GELU, 4 h, learned positions, untied head."""
    arch = row["arch"]
    return Job(
        params=row["params"],
        trainable_params=row["params"],
        seq=arch["seq"],
        global_batch=ranks * accumulation * row["micro_batch"],
        architecture=Architecture(
            layers=arch["layers"],
            hidden=arch["hidden"],
            heads=arch["heads"],
            kv_heads=arch["heads"],
            ffn=4 * arch["hidden"],
            vocab=arch["vocab"],
            gated_mlp=False,
            rmsnorm=False,
            learned_positions=True,
        ),
    )


def predict(row: dict[str, Any]) -> Predicted:
    """Predict the row's step on its machine."""
    options = row["options"]
    accumulation = int(options.get("accum", 1))
    sharded, single = row["strategy"] == "fsdp", row["strategy"] == "none"
    gpus = ("GPU0",) if single else ("GPU0", "GPU1")
    plan = Plan(
        gpus=gpus,
        strategy="single" if single else "fsdp" if sharded else "ddp",
        shard_size=2 if sharded else 1,
        reshard_after_forward=options.get("reshard") != "0",
        micro_batch=row["micro_batch"],
        accumulation=accumulation,
        precision="bf16-params" if sharded else "bf16-autocast",
        activation_checkpointing="full" if options.get("ckpt") == "1" else "none",
        gradient_dtype="bf16" if options.get("rd") == "16" or options.get("hook") == "bf16" else "fp32",
        bucket_cap_mb=float(options.get("bucket", 25)),
    )
    costs = Costs(job_of(row, len(gpus), accumulation), machine_of(row))
    plan = replace(plan, global_batch=costs.job.global_batch)
    return costs.predict(plan, costs.memory(plan))


def main() -> None:
    files = [Path(name) for name in sys.argv[1:]] or [ROWS]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    rows = [row for row in rows if row["kind"] == "step" and row.get("arch") and not row["env"]]
    time_errors, memory_errors = [], []
    print(f"{'transport':10}{'model':6}{'strategy':9}{'options':38}{'step ms':>16}{'':7}{'device GB':>14}")
    for row in rows:
        found = predict(row)
        step, memory = found.step_seconds * 1e3, found.memory.total
        time_errors.append(100 * (step / row["step_ms"] - 1))
        memory_errors.append(100 * (memory / row["device_used"] - 1))
        options = " ".join(f"{name}={value}" for name, value in row["options"].items())
        print(
            f"{row['transport']:10}{row['model']:6}{row['strategy']:9}{options:38}"
            f"{step:7.0f} /{row['step_ms']:7.0f}{time_errors[-1]:+6.0f}%"
            f"{memory / 1e9:6.1f} /{row['device_used'] / 1e9:5.1f}{memory_errors[-1]:+6.0f}%"
        )
    figures = {
        "rows": len(rows),
        "time_median_pct": round(statistics.median(map(abs, time_errors)), 1),
        "time_worst_pct": round(max(map(abs, time_errors)), 1),
        "memory_median_pct": round(statistics.median(map(abs, memory_errors)), 1),
        "memory_worst_pct": round(max(map(abs, memory_errors)), 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

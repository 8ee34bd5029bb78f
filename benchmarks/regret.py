"""How much slower the plan predicted fastest was than the best measured one: python benchmarks/regret.py FILE...

Rows of one transport, model, micro-batch and accumulation with at least three of them make a group. The pick is made
from probed facts alone and after calibration (as in accuracy.py). Rows that send gradients as bf16 count only with
`--allow bf16-gradients`. The last line is a JSON object.
"""

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from steps import Row, calibration_of, read

LEAST = 3  # rows of a group
ALLOW = "bf16-gradients"


def groups_of(rows: Iterable[Row], *, bf16: bool) -> dict[tuple[Any, ...], list[Row]]:
    """Group the rows that could have been chosen between: real plans that ran, without NCCL settings of their own."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        chosen = row.seconds is not None and not row.floor and not row.group[1]
        if chosen and (bf16 or row.plan.gradient_dtype == "fp32"):
            groups[row.group].append(row)
    return {group: members for group, members in groups.items() if len(members) >= LEAST}


def regret(members: list[Row], pick: Row) -> float:
    """Return by how many percent the picked row was slower than the best."""
    best = min(row.seconds or 0.0 for row in members)
    return 100 * ((pick.seconds or 0.0) / best - 1)


def always(strategy: str) -> Callable[[list[Row]], Row | None]:
    """Make the policy that takes the plain form of a strategy: DDP with buckets of 25 MiB, FSDP that reshards."""

    def pick(members: list[Row]) -> Row | None:
        plain = [
            row
            for row in members
            if row.plan.strategy == strategy
            and row.plan.gradient_dtype == "fp32"
            and (row.plan.bucket_cap_mb == 25 if strategy == "ddp" else row.plan.reshard_after_forward)
            and not row.plan.sync_each_micro_batch
        ]
        return plain[0] if plain else None

    return pick


def main() -> None:
    paths = [word for word in sys.argv[1:] if word not in ("--allow", ALLOW)]
    if not paths:
        raise SystemExit(f"usage: python benchmarks/regret.py [--allow {ALLOW}] FILE...")
    rows, collectives = read(paths)
    found: dict[str, list[float]] = defaultdict(list)
    best_picked = 0
    groups = groups_of(rows, bf16=ALLOW in sys.argv)
    print(f"{'group':48}{'probed':>8}{'calibrated':>12}  best measured -> picked after calibration")
    for group, members in groups.items():
        probed = min(members, key=lambda row: row.costs().step_seconds)
        calibration = calibration_of(members[0], rows, collectives)
        calibrated = min(members, key=lambda row: row.costs(calibration).step_seconds)
        found["probed"].append(regret(members, probed))
        found["calibrated"].append(regret(members, calibrated))
        best = min(members, key=lambda row: row.seconds or 0.0)
        best_picked += calibrated is best
        for name, policy in POLICIES.items():
            if (pick := policy(members)) is not None:
                found[name].append(regret(members, pick))
        words = " ".join(str(part) for part in group if part != ())
        last = f"{best.label[21:].strip()} -> {calibrated.label[21:].strip()}"
        print(f"{words:48}{found['probed'][-1]:7.1f}%{found['calibrated'][-1]:11.1f}%  {last}")
    figures: dict[str, Any] = {"groups": len(groups)}
    for name in ("probed", "calibrated"):
        figures[f"{name}_mean_pct"] = round(statistics.mean(found[name]), 2) if found[name] else None
        figures[f"{name}_max_pct"] = round(max(found[name]), 2) if found[name] else None
    figures["picked_best"] = best_picked
    figures["baselines"] = {
        name: {"mean_pct": round(statistics.mean(found[name]), 1), "max_pct": round(max(found[name]), 1)}
        for name in POLICIES
        if found[name]
    }
    print(json.dumps(figures))


POLICIES = {"always DDP 25 MiB": always("ddp"), "always FSDP": always("fsdp")}


if __name__ == "__main__":
    main()

"""Write docs/accuracy.md from the measured steps in benchmarks/data: python benchmarks/accuracy_page.py [FILE...]."""

import statistics
import sys
from collections import defaultdict
from pathlib import Path

from accuracy import Errors, quantile
from regret import POLICIES, groups_of, regret
from steps import Row, calibration_of, read

HERE = Path(__file__).parent
FILES = [str(path) for path in sorted((HERE / "data").glob("h200x2-*.jsonl"))]
PAGE = HERE.parent / "docs" / "accuracy.md"
CASES = HERE.parent / "docs" / "cases.md"
FITTED = ("125m", "vit_l_16", "resnet50")
WORST = 10  # rows shown

HEAD = """# How right the predictions are

Two H200 of one host over three transports: NVLink, PCIe through host memory (`NCCL_P2P_DISABLE=1`, called shm), TCP
over loopback (`NCCL_SHM_DISABLE=1` as well, called socket). PyTorch 2.11, NCCL 2.28; each row is the median step of one
run, and the same configuration again differs by up to 4 %. Memory is what the driver shows. "Calibrated": with the
measured step of one process without communication, and measured collectives, in place of data sheets.

Constants were chosen on the models 125m, vit_l_16 and resnet50; what is counted at all (streams' memory pools, the
host's time for each block, the slowing of compute beside transfers) was decided with all rows in view. No constant
belongs to a row or a model's name.

Written by `python benchmarks/accuracy_page.py`.
"""

WHY = """
Most of the worst rows are bound by the host under FSDP: a block costs it 2.9 ms (350m) to 5 ms (bert_large) on machines
of one kind at different times, where the model has 3.2 ms and 0.6 ms for gathering again. Calibration does not see it,
since the step without communication has no FSDP. TCP over loopback varies by 20 % from run to run.

The A100 rows of VIA-Research/vTrain (110 of them, Megatron-LM on 2 to 8 GPUs; not in this project) are predicted with a
median error of 10 %, all but a few too short: `benchmarks/megatron.py` says what Megatron does otherwise than PyTorch.
"""


def main() -> None:
    rows, collectives = read(sys.argv[1:] or FILES)
    found = [Errors(row, row.costs(), row.costs(calibration_of(row, rows, collectives))) for row in rows]
    pairs = list(zip(rows, found, strict=True))
    parts = [HEAD, "## Errors\n", _table(pairs), "\n## The worst rows\n", _worst(pairs), "\n## The choice\n"]
    parts[-1:-1] = [WHY]
    parts.append(_choice(rows, collectives))
    PAGE.write_text("\n".join(parts) + "\n")


def _table(pairs: list[tuple[Row, Errors]]) -> str:
    groups: dict[str, list[Errors]] = defaultdict(list)
    for row, errors in pairs:
        model, transport = row.group[2], row.group[0]
        groups["all rows"].append(errors)
        groups["models that constants were chosen on" if model in FITTED else "other models"].append(errors)
        groups[f"{row.plan.strategy}, {transport}"].append(errors)
    lines = [
        "Absolute errors in percent: median / 90th percentile.\n",
        "| rows | number | memory | step, data sheet | step, calibrated | below 95 % of the memory measured |",
        "|---|---|---|---|---|---|",
    ]
    for name, members in groups.items():
        cells = [_pair([e for e in (getattr(m, f) for m in members) if e is not None]) for f in FIELDS]
        lines.append(f"| {name} | {len(members)} | {' | '.join(cells)} | {sum(m.unsafe for m in members)} |")
    return "\n".join(lines)


FIELDS = ("memory", "probed", "calibrated")


def _pair(errors: list[float]) -> str:
    return f"{quantile(errors, 0.5)} / {quantile(errors, 0.9)}" if errors else "-"


def _worst(pairs: list[tuple[Row, Errors]]) -> str:
    lines = ["| row | memory | step, data sheet | step, calibrated |", "|---|---|---|---|"]
    pairs = sorted(pairs, key=lambda pair: -abs(pair[1].probed or 0.0))
    for row, errors in pairs[:WORST]:
        cells = [f"{value:+.0f} %" if value is not None else "-" for value in (getattr(errors, f) for f in FIELDS)]
        lines.append(f"| {' '.join(row.label.split())} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _choice(rows: list[Row], collectives: object) -> str:
    """Tell how much slower the picks are than the best measured plan of each group."""
    found: dict[str, list[float]] = defaultdict(list)
    for members in groups_of(rows, bf16=False).values():
        calibration = calibration_of(members[0], rows, collectives)  # type: ignore[arg-type]
        probed = min(members, key=lambda row: row.costs().step_seconds)
        calibrated = min(members, key=lambda row: row.costs(calibration).step_seconds)
        found["picked from data sheets"].append(regret(members, probed))
        found["picked after calibration"].append(regret(members, calibrated))
        for name, policy in POLICIES.items():
            if (pick := policy(members)) is not None:
                found[name].append(regret(members, pick))
    lines = [
        "By how many percent the plan predicted fastest was slower than the fastest measured, over groups of rows of",
        "one transport, model and batch; and two fixed policies.\n",
        "| policy | groups | mean | worst |",
        "|---|---|---|---|",
    ]
    lines += [f"| {n} | {len(v)} | {statistics.mean(v):.1f} | {max(v):.1f} |" for n, v in found.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

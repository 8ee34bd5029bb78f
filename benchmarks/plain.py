"""Plain scripts, each as one process and under `advisor`'s plans on 2 and 4: losses and weights compared.

    python benchmarks/plain.py fixtures/scripts/plain [--only NAME] [--strategies fsdp] [--page docs/plain-scripts.md]

First the proof that `advisor apply` makes before a run, then whole runs, without dropout and with other random numbers
inside a step matched with those of one process, as in the proof: else chance alone would make them differ. With
--device cuda a copy of each script is run whose tensors are made on the GPU (plain_on_gpu.py), without TF32.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from advisor.executor.folder import RunFolder
from advisor.executor.forked import FORKS, free_port
from advisor.executor.launch import WORKER, plain_environment, plan_launch
from advisor.executor.proof import Proof
from advisor.executor.prove import WITHOUT_TF32, prove
from advisor.executor.refuse import refuse
from advisor.executor.script import read_script
from advisor.rules.errors import AdvisorError
from advisor.rules.plan import Launcher, Plan, Strategy

Device = Literal["cpu", "cuda"]

RANK = Path(__file__).with_name("plain_rank.py")
ON_GPU = Path(__file__).with_name("plain_on_gpu.py")
SECONDS = 300.0  # of one whole run
EQUAL = 1e-3  # relative difference of a weight or a printed number that counts as equal, after a whole training,
BY_ROUNDING = 10.0  # or so many times the one between two runs of one process whose first weights are a rounding apart
RANKS = {"ddp": (2, 4), "fsdp": (2, 4), "hsdp": (4,)}  # hybrid: two copies of the model, each in two shards
NAMES = {"ddp": "DDP", "fsdp": "FSDP", "hsdp": "hybrid"}
HEAD = (
    "| script | DDP: proof, weights, printed | FSDP: proof, weights, printed | hybrid: proof, weights, printed "
    "| rounding: weights, printed |"
)
NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")


@dataclass
class Outcome:
    """What came of a script under one strategy."""

    proof: Proof | None = None
    refused: str | None = None
    failed: str | None = None
    weights: dict[int, float] = field(default_factory=dict)  # largest relative difference, by ranks
    losses: dict[int, float] = field(default_factory=dict)

    def equals(self, rounding: tuple[float, float]) -> bool:
        found = zip((self.weights, self.losses), rounding, strict=True)
        near = all(value <= max(EQUAL, BY_ROUNDING * by) for values, by in found for value in values.values())
        return self.failed is None and bool(self.weights) and near

    def shown(self, rounding: tuple[float, float]) -> str:
        if self.refused is not None:
            return "refused: " + re.sub(r"/\S*/", "", self.refused)
        if self.proof is None or self.failed is not None:
            return f"FAILED: {self.failed}"
        proof = f"{self.proof.largest:.0e}" + (", sums" if self.proof.loss == "sum" else "")
        found = ("/".join(f"{value:.0e}" for value in values.values()) for values in (self.weights, self.losses))
        return "; ".join(("" if self.equals(rounding) else "DIFFERENT: ") + one for one in (proof, *found))


@dataclass
class Row:
    script: str
    under: dict[Strategy, Outcome] = field(default_factory=dict)
    rounding: tuple[float, float] = (0.0, 0.0)  # of one process, whose weights began a rounding apart

    def count(self) -> Counter[str]:
        return Counter(
            "equal" if one.equals(self.rounding) else "refused" if one.refused is not None else "wrong"
            for one in self.under.values()
        )

    def shown(self) -> tuple[str, ...]:
        outcomes = [self.under[name].shown(self.rounding) if name in self.under else "" for name in NAMES]
        trained = any(one.weights for one in self.under.values())
        return (self.script, *outcomes, "; ".join(f"{value:.0e}" for value in self.rounding) if trained else "")


class Forks:
    """Processes forked from one that has imported torch."""

    def __init__(self, device: Device) -> None:
        environment = os.environ | WITHOUT_TF32 | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        self.device = device
        environment["CUDA_VISIBLE_DEVICES"] = ""  # of the process that is forked from; a rank sees its own
        command = [sys.executable, "-P", str(FORKS)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._environment = environment
        self._ask(do="preload", names=["numpy", "torch"])

    def run(self, folder: Path, argv: Sequence[str], ranks: int, environment: dict[str, str]) -> str:
        """Run the ranks in `folder` / "work"; return rank 0's output, or raise RuntimeError with what was said."""
        (folder / "work").mkdir(parents=True)
        port = str(free_port())
        given = []
        for rank in range(ranks):
            number = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            number |= {"LOCAL_RANK": 0, "CUDA_VISIBLE_DEVICES": rank} if self.device == "cuda" else {}
            world = {name: str(value) for name, value in number.items()} | {"MASTER_PORT": port, "GROUP_RANK": "0"}
            env = self._environment | world | {"MASTER_ADDR": "127.0.0.1"} | environment
            given.append({"environment": env, "out": str(folder / f"{rank}.out"), "err": str(folder / f"{rank}.err")})
        argv = [str(RANK), str(folder / "work"), *argv]
        answer = self._ask(do="trial", ranks=given, argv=argv, limit=SECONDS)
        if any(answer["statuses"]) or answer["late"]:
            said = [line for rank in range(ranks) for line in (folder / f"{rank}.err").read_text().splitlines()]
            raise RuntimeError(next((line for line in reversed(said) if line.strip()), "it said nothing"))
        return (folder / "0.out").read_text()

    def _ask(self, **asked: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def plan_of(ranks: int, strategy: Strategy, device: Device) -> Plan:
    launcher = Launcher(nproc_per_node=ranks, device=device, threads_per_rank=1)
    size = {"fsdp": ranks, "hsdp": 2}.get(strategy, 1)
    return Plan(
        gpus=tuple(f"{'GPU' if device == 'cuda' else 'CPU'}{i}" for i in range(ranks)),
        strategy=strategy,
        shard_size=size,
        precision="fp32",
        launcher=launcher,
    )


def on_gpu(script: Path, folder: Path) -> Path:
    """Copy a script with a first line that has its tensors made on the GPU; return the copy."""
    text = script.read_text()
    late = (node for node in ast.parse(text).body if not is_first(node))
    line = next(late).lineno - 1
    lines = text.splitlines()
    copy = folder / script.name
    copy.write_text("\n".join([*lines[:line], f"import {ON_GPU.stem}", *lines[line:]]) + "\n")
    return copy


def is_first(node: ast.stmt) -> bool:
    """Say whether nothing may stand before a statement: a docstring, or an import from __future__."""
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def judge(script: Path, strategies: Sequence[Strategy], most: int, forks: Forks, folder: Path) -> Row:
    """Prove, run and compare one script under each strategy, on `most` ranks at most."""
    row = Row(script.name)
    for strategy in strategies:
        ranks = [count for count in RANKS[strategy] if count <= most]
        if ranks:
            row.under[strategy] = proved(script, plan_of(ranks[0], strategy, forks.device), folder / strategy / "proof")
    if all(one.refused is not None for one in row.under.values()):
        return row
    alone = forks.run(folder / "1", [str(script)], 1, {"PLAIN_ALONE": "1"})
    nudge = {"PLAIN_ALONE": "1", "PLAIN_NUDGE": str(rounding(script))}
    nudged = forks.run(folder / "nudged", [str(script)], 1, nudge)
    row.rounding = compared(folder / "1" / "work", folder / "nudged" / "work", alone, nudged)
    for strategy, outcome in row.under.items():
        for count in RANKS[strategy] if outcome.proof is not None else ():
            if count > most:
                continue
            place = folder / strategy / str(count)
            try:
                out = trained(script, plan_of(count, strategy, forks.device), outcome.proof, forks, place)
            except RuntimeError as error:
                outcome.failed = f"on {count} ranks: {error}"
                break
            found = compared(folder / "1" / "work", place / "work", alone, out)
            outcome.weights[count], outcome.losses[count] = found
    return row


def proved(script: Path, plan: Plan, folder: Path) -> Outcome:
    facts = read_script(script)

    def launch(plan: Plan, place: RunFolder) -> Any:
        return plan_launch(plan, str(script), (), place, facts=facts)

    try:
        refuse(plan, facts)
        return Outcome(proof=prove(plan, str(script), (), folder, launch))
    except AdvisorError as error:
        return Outcome(refused=str(error))


def trained(script: Path, plan: Plan, proof: Proof | None, forks: Forks, place: Path) -> str:
    """Run a script whole under a plan; return what it printed, or raise RuntimeError with what was said."""
    run = RunFolder(place / "run")
    place.mkdir(parents=True)
    run.create()
    run.plan.write_bytes(msgspec.json.encode(plan))
    how = plain_environment(seed=0, matched=True, loss="mean" if proof is None else proof.loss)
    return forks.run(place, [str(WORKER), str(script)], plan.ranks, {"ADVISOR_PLAN": str(run.plan)} | how)


def rounding(script: Path) -> float:
    """Return the relative rounding of what a script computes in."""
    return 8e-3 if "bfloat16" in script.read_text() else 1.2e-7


def compared(one: Path, other: Path, out: str, other_out: str) -> tuple[float, float]:
    """Return the largest relative differences of weights, and of numbers printed."""
    return max(differences(one, other), default=0.0), numbers(out, other_out)


def differences(one: Path, other: Path) -> Iterator[float]:
    """Yield the relative differences of all saved tensors; infinity for a file or tensor that is missing."""
    for path in sorted([*one.rglob("*.pt*"), *one.rglob("*.ckpt")]):
        there = other / path.relative_to(one)
        if not there.exists():
            yield float("inf")
            return
        try:
            mine, theirs = (
                list(tensors(torch.load(file, map_location="cpu", weights_only=False))) for file in (path, there)
            )
        except AttributeError:  # a model pickled whole, whose class is the script's
            continue
        if [one.shape for one in mine] != [one.shape for one in theirs]:
            yield float("inf")
            return
        for a, b in zip(mine, theirs, strict=True):
            if a.is_floating_point() and a.numel():
                yield float((a - b).abs().max() / a.abs().max().clamp(min=1e-2))


def loaded(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=False)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.nn.Module):
        value = value.state_dict()
    if isinstance(value, torch.Tensor):
        yield value.double() if value.is_floating_point() else value
    elif isinstance(value, dict):
        yield from (one for part in value.values() for one in tensors(part))
    elif isinstance(value, list | tuple):
        yield from (one for part in value for one in tensors(part))


def numbers(one: str, other: str) -> float:
    """Return the largest relative difference of the numbers that two runs print; infinity if they print other ones."""
    mine, theirs = ([float(found) for found in NUMBER.findall(text)] for text in (one, other))
    if len(mine) != len(theirs):
        return float("inf")
    # What is printed with four digits has no more than four.
    return max(
        (max(0.0, abs(a - b) - 1.01e-4) / max(abs(a), 1e-1) for a, b in zip(mine, theirs, strict=True)), default=0.0
    )


def paged(page: Path, rows: Sequence[Row]) -> None:
    """Put the rows in the place of the table of a page."""
    lines = page.read_text().splitlines()
    head = lines.index(HEAD)
    end = next(i for i, line in enumerate([*lines[head:], ""], head) if not line.startswith("|"))
    table = ["| " + " | ".join(cell.replace("|", "/") for cell in row.shown()) + " |" for row in rows]
    page.write_text("\n".join([*lines[: head + 2], *table, *lines[end:]]) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--only", help="comma-separated names")
    parser.add_argument("--strategies", default=",".join(RANKS))
    parser.add_argument("--ranks", type=int, default=4, help="at most so many")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--page", type=Path, help="replace the table of this page")
    args = parser.parse_args()
    scripts = [path for given in args.folders for path in (sorted(given.glob("*.py")) if given.is_dir() else [given])]
    if args.only:
        scripts = [path for path in scripts if path.stem in args.only.split(",")]
    if args.device == "cuda":
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ON_GPU.parent), os.environ.get("PYTHONPATH"))))
    forks, rows = Forks(args.device), []
    with tempfile.TemporaryDirectory(prefix="plain-") as folder:
        for path in scripts:
            started = time.monotonic()
            place = Path(folder) / path.stem
            place.mkdir()
            script = on_gpu(path, place) if args.device == "cuda" else path.absolute()
            rows.append(judge(script, args.strategies.split(","), args.ranks, forks, place))
            print(" | ".join(rows[-1].shown()), f"({time.monotonic() - started:.0f} s)", flush=True)
    forks.close()
    if args.page is not None:
        paged(args.page, rows)
    found = sum((row.count() for row in rows), Counter())
    print(json.dumps({"scripts": len(rows)} | {name: found[name] for name in ("equal", "refused", "wrong")}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

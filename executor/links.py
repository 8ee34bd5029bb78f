"""Measure the links of this machine: collectives over groups of its GPUs or CPU processes, and copies to the host.

A round that hangs or fails is an answer with its reason; the other rounds are then run again without it.
"""

import datetime
import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from advisor.executor.forked import Forks, forks
from advisor.executor.launch import visible_devices
from advisor.rules.calibration import HostCopies, MeasuredGroup
from advisor.rules.cpu_ranks import is_cpu
from advisor.rules.errors import AdvisorError
from advisor.rules.fabric import Collective, Op
from advisor.rules.machine import Machine, Unknown
from advisor.rules.measurements import Links, collective_of
from advisor.rules.topology import islands

EXCEPTION = re.compile(r"[\w.]*(Error|Exception)\b.*:")  # begins the last of a traceback
PROGRAM = Path(__file__).parent / "bootstrap" / "links.py"
SIZES = tuple(2**16 * 4**power for power in range(7))  # 64 KiB to 256 MiB
CPU_SIZES = tuple(2**16 * 4**power for power in range(5))  # to 16 MiB
OPS: tuple[Op, ...] = ("all_reduce", "all_gather", "reduce_scatter")
START_LIMIT, ROUND_LIMIT = 30.0, 15.0  # seconds
COPIES = "copies between GPUs and host memory"


class Round(NamedTuple):
    """What is timed at once: groups of GPUs beside each other, or copies of all GPUs."""

    name: str
    groups: tuple[tuple[str, ...], ...] = ()
    copies: bool = False


def rounds_of(machine: Machine, gpus: tuple[str, ...]) -> Iterator[Round]:
    """Yield what is to be measured: all GPUs, each island, one GPU of each island, and copies to the host."""
    if len(gpus) > 1:
        yield Round(f"all {len(gpus)}", (gpus,))
    inside = [tuple(gpu for gpu in island if gpu in gpus) for island in islands(machine)]
    inside = [island for island in inside if island]
    if len(inside) > 1:
        yield from (Round(f"island {','.join(island)}", (island,)) for island in inside if len(island) > 1)
        if len({len(island) for island in inside}) == 1 and len(inside[0]) > 1:
            yield Round("across islands", tuple(zip(*inside, strict=True)))
    if not is_cpu(machine.gpu(gpus[0])):
        yield Round(COPIES, copies=True)


def measure_links(machine: Machine, gpus: tuple[str, ...], forks: Forks, limit: float) -> Links:
    """Measure the links between GPUs of this machine within so many seconds, start-up included."""
    started = time.monotonic()
    wanted = list(rounds_of(machine, gpus))
    found: dict[str, Sequence[Mapping[str, Any]]] = {}
    failed: list[Unknown] = []
    while wanted:
        left = limit - (time.monotonic() - started)
        if left <= 0:
            failed += [Unknown(what=one.name, why="no time was left to measure it") for one in wanted]
            break
        done, ill, why = _run(machine, gpus, wanted, forks, left)
        found |= done
        wanted = [one for one in wanted if one.name not in done]
        if not wanted:
            break
        if ill is None:  # it did not even start
            failed += [Unknown(what=one.name, why=why) for one in wanted]
            break
        failed.append(Unknown(what=ill, why=why))
        wanted = [one for one in wanted if one.name != ill]
    rounds = [one for one in rounds_of(machine, gpus) if one.name in found]
    return Links(
        date=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        seconds=time.monotonic() - started,
        groups=tuple(_group(one, found[one.name], gpus) for one in rounds if not one.copies),
        host_copies=next((_copies(found[one.name]) for one in rounds if one.copies), None),
        failed=tuple(failed),
    )


def measure_here(machine: Machine, gpus: tuple[str, ...], limit: float) -> Links:
    """Measure in processes of our own that end with this. Raises AdvisorError where torch can't be imported."""
    hint = "try again, or: pip install torch"
    with tempfile.TemporaryDirectory(prefix="advisor-") as place, forks(Path(place), os.environ, hint) as running:
        failed = running.preload(["torch"])["failed"]
        if failed:
            raise AdvisorError(f"torch can't be imported: {failed['torch']}", "python -c 'import torch' says more")
        return measure_links(machine, gpus, running, limit)


def _run(
    machine: Machine, gpus: tuple[str, ...], wanted: Sequence[Round], forks: Forks, limit: float
) -> tuple[dict[str, list[Any]], str | None, str]:
    """Run rounds in processes of their own: what each rank found by round, the round that went wrong, and why."""
    folder = forks.next_folder(f"links-{len(wanted)}")
    on_cpu = is_cpu(machine.gpu(gpus[0]))
    given = {
        "backend": "gloo" if on_cpu else "nccl",
        "sizes": CPU_SIZES if on_cpu else SIZES,
        "folder": str(folder.ranks.absolute()),
        "start_limit": min(START_LIMIT, limit),
        "limit": ROUND_LIMIT,
        "rounds": [
            {"name": one.name, "copies": one.copies, "groups": [[gpus.index(gpu) for gpu in g] for g in one.groups]}
            for one in wanted
        ],
    }
    visible = visible_devices(gpus, "cpu" if on_cpu else "cuda", machine)
    environment = {**os.environ, **visible, "ADVISOR_LINKS": json.dumps(given)}
    answer = forks.run([str(PROGRAM)], len(gpus), folder, environment, limit)
    lines = {rank: _lines(folder.ranks / f"{rank}.jsonl") for rank in range(len(gpus))}
    ended: dict[str, list[Any]] = {}
    for one in wanted:
        results = [line["found"] for rank in lines for line in lines[rank] if line.get("ended") == one.name]
        if len(results) == len(gpus):
            ended[one.name] = results
    ill = next((one.name for one in wanted if one.name not in ended), None)
    begun = any(line.get("began") == ill for rank in lines for line in lines[rank])
    return ended, ill if begun else None, _why(answer, folder.logs, limit)


def _why(answer: Mapping[str, Any], logs: Path, limit: float) -> str:
    """Say why not all rounds ended: that ranks waited until the alarm, which others may lament, or what one said."""
    if answer["late"]:
        return f"it did not end within {limit:.0f} s"
    if -signal.SIGALRM in answer["statuses"]:
        return f"it hung: no answer within {ROUND_LIMIT:.0f} s"
    said = [line for log in sorted(logs.glob("*.err")) for line in log.read_text(errors="replace").splitlines()]
    # An error of CUDA has more lines, of advice, and one of them names an error too.
    error = next((line for line in reversed(said) if EXCEPTION.match(line)), None)
    return error.strip() if error else "its processes ended without a word"


def _lines(path: Path) -> list[dict[str, Any]]:
    """Read what a rank wrote; a last line that its end cut short counts as not written."""
    if not path.exists():
        return []
    *whole, _ = path.read_bytes().split(b"\n")
    return [msgspec.json.decode(line) for line in whole]


def _group(one: Round, results: Sequence[Mapping[str, Any]], gpus: tuple[str, ...]) -> MeasuredGroup:
    """Return the cost of the first group of a round; of several beside each other, that of the slowest."""
    each = [results[gpus.index(group[0])] for group in one.groups]
    collectives: dict[Op, Collective] = {}
    for op in OPS:
        alike = zip(*(found[op] for found in each), strict=False)  # one group may have stopped at a smaller size
        points = [(points[0][0], max(seconds for _, seconds in points)) for points in alike]
        collectives[op] = collective_of(op, len(one.groups[0]), points)
    return MeasuredGroup(gpus=one.groups[0], concurrent=len(one.groups), collectives=collectives)


def _copies(results: Sequence[Mapping[str, float]]) -> HostCopies:
    return HostCopies(
        to_gpu=min(found["to_gpu"] for found in results), from_gpu=min(found["from_gpu"] for found in results)
    )

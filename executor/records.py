"""What the ranks wrote down (`advisor.executor.in_process.recorder`), read back."""

from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from advisor.rules.machine import Value


class Row(Value, frozen=True, kw_only=True, tag_field="kind"):
    """One line of `ranks/<rank>.jsonl`."""


class Start(Row, frozen=True, kw_only=True, tag="start"):
    rank: int
    pid: int
    time: float  # seconds since 1970


class Ddp(Row, frozen=True, kw_only=True, tag="ddp"):
    """One DistributedDataParallel that the script built: arguments added, the script's that they replaced, and kept."""

    given: dict[str, Any]
    overridden: dict[str, Any]
    kept: dict[str, Any]


class Model(Row, frozen=True, kw_only=True, tag="model"):
    """The model that the first DistributedDataParallel holds, and the batch of its first step."""

    parameters: dict[str, tuple[int, ...]]
    trainable: int
    forwards: int
    inputs: tuple[tuple[int, ...], ...] = ()
    autocast: str | None = None  # a dtype


class Steps(Row, frozen=True, kw_only=True, tag="steps"):
    """Consecutive steps, numbered from 0; the first of all has no measured start."""

    first: int
    wall: tuple[float, ...]  # seconds
    device: tuple[float | None, ...]  # seconds between CUDA events, where there are any


class Memory(Row, frozen=True, kw_only=True, tag="memory"):
    """Peaks so far, in bytes. `device_used` counts all processes on the GPU."""

    peak_rss: int | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    device_used: int | None = None


class End(Row, frozen=True, kw_only=True, tag="end"):
    exit_code: int  # as a shell shows it


class RankRecord(Value, frozen=True, kw_only=True):
    rank: int
    pid: int
    steps: tuple[tuple[float, float | None], ...] = ()  # seconds by wall clock and by device, from step 1 on
    memory: Memory | None = None
    ddp: tuple[Ddp, ...] = ()
    model: Model | None = None
    exit_code: int | None = None  # None: ended by a signal, by os._exit or not at all


_decoder = msgspec.json.Decoder(Start | Ddp | Model | Steps | Memory | End)


def read_ranks(folder: Path) -> tuple[RankRecord, ...]:
    """Read the records of all ranks that started, in their order."""
    return tuple(sorted(map(read_rank, folder.glob("*.jsonl")), key=lambda record: record.rank))


def read_rank(path: Path) -> RankRecord:
    """Read the record of one rank. A last line that a kill cut short counts as not written."""
    *lines, _ = path.read_bytes().split(b"\n")
    rows = [_decoder.decode(line) for line in lines]
    start = next((row for row in rows if isinstance(row, Start)), None)
    steps = [pair for row in rows if isinstance(row, Steps) for pair in zip_longest(row.wall, row.device)]
    memory = [row for row in rows if isinstance(row, Memory)]
    ends = [row for row in rows if isinstance(row, End)]
    return RankRecord(
        rank=int(path.stem) if start is None else start.rank,
        pid=0 if start is None else start.pid,
        steps=tuple(steps),
        memory=memory[-1] if memory else None,
        ddp=tuple(row for row in rows if isinstance(row, Ddp)),
        model=next((row for row in rows if isinstance(row, Model)), None),
        exit_code=ends[-1].exit_code if ends else None,
    )

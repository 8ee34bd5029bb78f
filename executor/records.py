"""What the ranks wrote down (`advisor.executor.in_process.recorder`), read back."""

from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from advisor.executor.frames import Frame
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


class Library(Row, frozen=True, kw_only=True, tag="library"):
    """What the plan asks of a library that distributes the model, and what its live objects said they became."""

    name: str  # and version
    wanted: dict[str, Any]
    became: dict[str, Any]  # with the same keys


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


class ProofStep(Row, frozen=True, kw_only=True, tag="proof"):
    """One optimizer step of a plain script in a trial: the losses of its backward passes, the gradients' norm."""

    losses: tuple[float, ...]
    norm: float
    dtypes: tuple[str, ...]  # of gradients
    where: str  # the script's line of the last backward pass
    reads: str = ""  # the line where it first read a number that differs between slices, and is no loss


class Loss(Row, frozen=True, kw_only=True, tag="loss"):
    """The loss of a plain script over all ranks, in its backward passes 1, 2, 4, 8, ..."""

    backward: int
    loss: float


class Refused(Row, frozen=True, kw_only=True, tag="refused"):
    """What a trial would have written to, though it was there before."""

    path: str


class Failed(Row, frozen=True, kw_only=True, tag="failed"):
    """The exception that ended the script; frames from the innermost out."""

    time: float  # seconds since 1970
    error: str  # type and text
    exit_code: int = 1  # to which it leads
    frames: tuple[Frame, ...] = ()


class End(Row, frozen=True, kw_only=True, tag="end"):
    exit_code: int  # as a shell shows it


class RankRecord(Value, frozen=True, kw_only=True):
    rank: int
    pid: int
    steps: tuple[tuple[float, float | None], ...] = ()  # seconds by wall clock and by device, from step 1 on
    memory: Memory | None = None
    ddp: tuple[Ddp, ...] = ()
    libraries: tuple[Library, ...] = ()
    model: Model | None = None
    proof: tuple[ProofStep, ...] = ()
    losses: tuple[Loss, ...] = ()
    refused: tuple[str, ...] = ()  # paths, in a trial
    failed: Failed | None = None
    exit_code: int | None = None  # None: ended by a signal, by os._exit or not at all


LONGEST_END = 200  # bytes of an End

_decoder = msgspec.json.Decoder(
    Start | Ddp | Library | Model | Steps | Memory | ProofStep | Loss | Refused | Failed | End
)


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
        libraries=tuple(row for row in rows if isinstance(row, Library)),
        model=next((row for row in rows if isinstance(row, Model)), None),
        proof=tuple(row for row in rows if isinstance(row, ProofStep)),
        losses=tuple(row for row in rows if isinstance(row, Loss)),
        refused=tuple(row.path for row in rows if isinstance(row, Refused)),
        failed=next((row for row in rows if isinstance(row, Failed)), None),
        exit_code=ends[-1].exit_code if ends else None,
    )


def read_ends(folder: Path) -> dict[int, tuple[int, int | None]]:
    """Read of each rank that started, while it may still run, its pid and the exit code with which it has ended."""
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            first = file.readline()
            file.seek(max(0, path.stat().st_size - LONGEST_END))
            last = file.read().rstrip(b"\n").rsplit(b"\n", 1)[-1]
        if first.endswith(b"\n"):
            start = msgspec.json.decode(first, type=Start)
            end = msgspec.json.decode(last, type=End).exit_code if last.startswith(b'{"kind": "end"') else None
            found[start.rank] = (start.pid, end)
    return found

"""What went wrong in a run and what to do, for one screen."""

import re
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress

from advisor.executor.advice import advise
from advisor.executor.first_failure import RankFailure, first_failure
from advisor.executor.folder import RunFolder
from advisor.executor.frames import own_line
from advisor.executor.process import Ended
from advisor.executor.records import RankRecord
from advisor.rules.format import ids, plural
from advisor.rules.machine import Value
from advisor.rules.plan import Plan, Predicted

LAST_LINES = 12
TAIL = 1 << 15  # bytes of a log that are read
RANK = re.compile(r"^\[rank\d+\]:\s*")
NATIVE = re.compile(r"(\[rank\d+\]:)?\s*(frame #\d+: |Exception raised from .*most recent call first)")


class Fault(Value, frozen=True, kw_only=True):
    what: str  # one sentence: rank, pid and host, and how it ended
    where: str | None = None  # the user's own line of code
    details: tuple[str, ...] = ()  # what the rank wrote last, or where each rank stands; none of what rank 0 has shown
    others: str | None = None  # who ended as a consequence
    todo: tuple[str, ...] = ()


def fault_of(
    ended: Ended,
    torchrun_log: str,
    ranks: Sequence[RankRecord],
    folder: RunFolder,
    *,
    plan: Plan,
    predicted: Predicted | None,
) -> Fault | None:
    """Say what went wrong; None where the run was fine, or was stopped from outside."""
    if ended.hang is not None:
        stacks = f"all stacks: {folder.logs / 'hang.txt'}"
        return Fault(what=ended.hang.what, details=ended.hang.ranks, todo=(*ended.hang.todo, stacks))
    failure = first_failure(torchrun_log, ranks)
    if failure is None:
        return None
    record = next((record for record in ranks if record.rank == failure.rank), None)
    said = _tail(folder, failure.rank)
    failed = None if record is None else record.failed
    line = None if failed is None else own_line(failed.frames)
    words = "\n".join(said[-LAST_LINES:]) if failed is None else failed.error
    return Fault(
        what=_sentence(failure, record),
        where=None if line is None else str(line),
        details=() if failure.rank == 0 else tuple(said[-LAST_LINES:]),
        others=_others(failure.rank, ranks),
        todo=advise(words, failure.status, plan, predicted),
    )


def _sentence(failure: RankFailure, record: RankRecord | None) -> str:
    who = f"rank {failure.rank} (pid {failure.pid} on {socket.gethostname()})"
    steps = len(record.steps) + 1 if record is not None and record.steps else 0
    when = f" after {plural(steps, 'step')}" if steps else ""
    error = None if record is None or record.failed is None else record.failed.error.splitlines()[0]
    if failure.status == -signal.SIGABRT and error is not None:  # NCCL's watchdog ends a process whose GPU has failed
        return f"{who} failed{when}: {error}; it was killed by signal 6 (SIGABRT) on its way out"
    if failure.status < 0:
        when = f" after at least {plural(steps, 'step')}" if steps else ""  # the last second was not yet written
        name = ""
        with suppress(ValueError):
            name = f" ({signal.Signals(-failure.status).name})"
        return f"{who} was killed by signal {-failure.status}{name}{when}"
    if error is None:
        return f"{who} left with exit code {failure.status}{when}"
    return f"{who} failed{when}: {error}"


def _others(first: int, ranks: Sequence[RankRecord]) -> str | None:
    ended = [str(record.rank) for record in ranks if record.rank != first and record.exit_code != 0]
    if not ended:
        return None
    return f"rank{'' if len(ended) == 1 else 's'} {ids(ended)} ended as a consequence"


def _tail(folder: RunFolder, rank: int) -> list[str]:
    """Return the last lines that a rank wrote to standard error, each once and without the frames of native code."""
    try:
        with (folder.logs / f"{rank}.err").open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    told = {RANK.sub("", line): line for line in reversed(text.splitlines())}  # of equal lines the first
    return [line for line in reversed(told.values()) if line.strip() and not NATIVE.match(line)]

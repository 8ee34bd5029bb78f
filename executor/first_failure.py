"""Which rank failed first: torchrun's summary and the ranks' own records, taken together.

torchrun knows how each process ended, but times exceptions by whole seconds and, of a rank that was killed, only when
it noticed: a rank that merely lost its peer is then easily named as the cause.
"""

import datetime
import re
import signal
from collections.abc import Sequence

import msgspec

from advisor.executor.records import RankRecord
from advisor.rules.machine import Value

# Text of torch.distributed.elastic.multiprocessing.errors, the same from 1.9 to 2.13. The root cause comes last.
FAILURE = re.compile(
    r"^\[\d+\]:\n  time      : (\S+)\n.*?^  rank      : (\d+) .*?^  exitcode  : (-?\d+)\s+\(pid: (\d+)\)", re.M | re.S
)
LOST_PEER = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|ncclRemoteError|remote process exited|Connection refused"
    r"|failed to recv|wait for key|timed out",
    re.I,
)
KILLED = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
LATER = 5.0  # seconds after an exception, a kill is torchrun's own: it waits longer than that before it kills


class RankFailure(Value, frozen=True, kw_only=True):
    rank: int
    pid: int
    status: int  # negative: a signal
    noticed: float  # seconds since 1970, whole


def first_failure(torchrun_log: str, ranks: Sequence[RankRecord]) -> RankFailure | None:
    """Return the failure that led to the others, None where torchrun tells of none."""
    failures = [
        RankFailure(rank=int(rank), pid=int(pid), status=int(status), noticed=_seconds(noticed))
        for noticed, rank, status, pid in FAILURE.findall(torchrun_log)
    ]
    failed = {record.rank: record.failed for record in ranks if record.failed is not None}
    earliest = min((row.time for row in failed.values()), default=float("inf"))

    def order(failure: RankFailure) -> tuple[int, float]:
        row = failed.get(failure.rank)
        if row is not None:
            return (2 if LOST_PEER.search(row.error) else 1), row.time
        if failure.status >= 0:
            return 1, failure.noticed
        if -failure.status in KILLED and failure.noticed <= earliest + LATER:
            return 0, failure.noticed
        return (2 if -failure.status == signal.SIGABRT else 3), failure.noticed

    first = min(reversed(failures), key=order, default=None)
    row = None if first is None else failed.get(first.rank)
    if first is None or row is None or first.status != -signal.SIGTERM:
        return first
    return msgspec.structs.replace(first, status=row.exit_code)  # torchrun stopped it on its way out


def _seconds(text: str) -> float:
    try:
        return datetime.datetime.strptime(text, "%Y-%m-%d_%H:%M:%S").timestamp()
    except ValueError:
        return float("inf")

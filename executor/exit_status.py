"""The script's own exit status. torchrun ends with 1 whatever the script's was, so it is pieced together here."""

import re
from collections.abc import Sequence

from advisor.executor.process import Ended
from advisor.executor.records import RankRecord

# What torchrun's ChildFailedError prints last: of the rank that failed first, as the operating system saw it.
# Text of torch.distributed.elastic.multiprocessing.errors, the same from 1.9 to 2.13.
ROOT_CAUSE = re.compile(
    r"^Root Cause \(first observed failure\):\n\[\d+\]:\n.*?^  rank      : (\d+) .*?^  exitcode  : (-?\d+) ",
    re.M | re.S,
)


def script_exit(ended: Ended, torchrun_log: str, ranks: Sequence[RankRecord]) -> tuple[int, int | None]:
    """Return the status of the rank that failed first, as a shell would show it, and which rank that was.

    Where torchrun was stopped by a signal it names no rank: then the ranks' own records tell, and a rank without a last
    record was ended by that signal.
    """
    if ended.torchrun == 0:
        return 0, None
    cause = ROOT_CAUSE.search(torchrun_log)
    if cause is not None:
        return shell_status(int(cause[2])), int(cause[1])
    killed = shell_status(ended.torchrun if ended.signal is None else -ended.signal)
    codes = {record.rank: killed if record.exit_code is None else record.exit_code for record in ranks}
    for rank, code in codes.items():
        if code != 0:
            return code, rank
    return (0 if codes else killed), None


def shell_status(status: int) -> int:
    """Turn a status with negative signals into a shell's: 128 and the signal."""
    return 128 - status if status < 0 else status

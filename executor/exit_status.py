"""The script's own exit status. torchrun ends with 1 whatever the script's was, so it is pieced together here."""

from collections.abc import Sequence

from advisor.executor.first_failure import first_failure
from advisor.executor.process import Ended
from advisor.executor.records import RankRecord

HANG = 124  # as timeout(1) ends where time is up


def script_exit(ended: Ended, torchrun_log: str, ranks: Sequence[RankRecord]) -> tuple[int, int | None]:
    """Return the status of the rank that failed first, as a shell would show it, and which rank that was.

    Where torchrun was stopped by a signal it names no rank: then the ranks' own records tell, and a rank without a last
    record was ended by that signal.
    """
    if ended.hang is not None:
        return HANG, next(iter(ended.hang.missing), None)
    if ended.torchrun == 0:
        return 0, None
    cause = first_failure(torchrun_log, ranks)
    if cause is not None:
        return shell_status(cause.status), cause.rank
    killed = shell_status(ended.torchrun if ended.signal is None else -ended.signal)
    codes = {record.rank: killed if record.exit_code is None else record.exit_code for record in ranks}
    for rank, code in codes.items():
        if code != 0:
            return code, rank
    return (0 if codes else killed), None


def shell_status(status: int) -> int:
    """Turn a status with negative signals into a shell's: 128 and the signal."""
    return 128 - status if status < 0 else status

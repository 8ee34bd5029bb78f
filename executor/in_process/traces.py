"""Exceptions of the user's script: shown without our frames, and told to torchrun."""

import json
import os
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

MOST_FRAMES = 60
LONGEST_TEXT = 2000


def take_over(error: BaseException, ours: str) -> None:
    """Prepare an exception that is about to end the process; `ours` is the folder of our files.

    Python itself still shows it, with whichever hook the script has set by now, and sets the exit status.
    """
    cut(error, ours)
    if not isinstance(error, (SystemExit, KeyboardInterrupt)):
        tell_torchrun(error)
    show = sys.excepthook

    def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = show
        cut(value, ours)  # again: the frames that the exception passed since
        show(kind, value, value.__traceback__)

    sys.excepthook = excepthook


def cut(error: BaseException, ours: str) -> None:
    """Take our frames out of the traceback of an exception and of all it is chained to."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        link.__traceback__ = without(link.__traceback__, ours)
        waiting += [link.__cause__, link.__context__]


def without(trace: TracebackType | None, ours: str) -> TracebackType | None:
    """Unlink the entries of files below the folder `ours` from a traceback."""
    kept = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(ours + os.sep):
            kept.append(trace)
        trace = trace.tb_next
    for entry, following in zip(kept, [*kept[1:], None], strict=False):
        entry.tb_next = following
    return kept[0] if kept else None


def tell_torchrun(error: BaseException) -> None:
    """Write torchrun's error file, unless the script's own `@record` has done so.

    The format is that of torch.distributed.elastic.multiprocessing.errors.ErrorHandler.record_exception.
    """
    name = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not name or Path(name).exists():
        return
    facts = {"py_callstack": "".join(traceback.format_exception(error)), "timestamp": str(int(time.time()))}
    try:
        with Path(name).open("w") as file:
            json.dump({"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": facts}}, file)
    except OSError as problem:
        sys.stderr.write(f"advisor: torchrun will not know of this error: {problem}\n")


def describe(error: BaseException) -> dict[str, Any]:
    """Return when, what and where, the innermost line first, for the records."""
    frames = [
        {"file": frame.filename, "line": frame.lineno or 0, "name": frame.name, "text": frame.line or ""}
        for frame in reversed(traceback.extract_tb(error.__traceback__))
    ]
    text = traceback.format_exception_only(error)[-1].strip()
    facts = {"time": time.time(), "error": text[:LONGEST_TEXT], "exit_code": exit_code(error)}
    return facts | {"frames": frames[:MOST_FRAMES]}


def exit_code(error: BaseException) -> int:
    """Say with which status python ends the process for this exception, as a shell would print it."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1

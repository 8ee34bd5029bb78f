"""Import once what a script imports, then fork a process for each rank of each trial of it.

It reads one JSON object a line from its standard input and answers each with one on its standard output. Nothing here
starts a thread or touches a GPU, so that forked processes can.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_SECONDS = 3.0  # that the other ranks get once one has failed, to fail as well
POLL_SECONDS = 0.01
LIBC = ctypes.CDLL(None)


def preload(names: list[str]) -> dict[str, Any]:
    """Import those of the modules that are installed packages; what the script's folder holds is the script's."""
    started = time.monotonic()
    installed = tuple(sysconfig.get_paths()[kind] for kind in ("purelib", "platlib", "stdlib", "platstdlib"))
    failed: dict[str, str] = {}
    gc.disable()  # it would look through all that torch holds again and again: a third of the time
    for name in names:
        try:
            spec = PathFinder.find_spec(name.split(".")[0])
            if spec is not None and (spec.origin or "").startswith(installed):
                importlib.import_module(name)
        except BaseException as error:  # the script's own import will say it again
            failed[name] = repr(error)
    gc.freeze()  # ranks that are forked need not look through it either, nor copy the pages to do so
    gc.enable()
    return {"seconds": time.monotonic() - started, "failed": failed, "threads": threading.active_count()}


def trial(ranks: list[dict[str, Any]], argv: list[str], limit: float) -> dict[str, Any]:
    """Run one process for each rank until all have ended, one has failed, or the limit in seconds is reached."""
    started = time.monotonic()
    running = {start(rank, argv): index for index, rank in enumerate(ranks)}
    statuses: list[int | None] = [None] * len(ranks)
    deadline, late = started + limit, False
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in running:
            code = statuses[running.pop(pid)] = os.waitstatus_to_exitcode(status)
            if code:
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        elif pid == 0:
            if time.monotonic() > deadline:
                late = all(not code for code in statuses)
                break
            time.sleep(POLL_SECONDS)
    end_descendants()
    return {"statuses": statuses, "late": late, "seconds": time.monotonic() - started}


def start(rank: dict[str, Any], argv: list[str]) -> int:
    """Fork the process of one rank: as torchrun would start it, with its output in files."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 0)
        os.setsid()
        for stream, path in enumerate(("/dev/null", rank["out"], rank["err"])):
            file = os.open(path, os.O_RDONLY if stream == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(file, stream)
            os.close(file)
        os.environ.clear()
        os.environ.update(rank["environment"])
        code = run_worker(argv)
    finally:
        os._exit(code)


def run_worker(argv: list[str]) -> int:
    """Run the worker as `python -u WORKER SCRIPT ...` would, and return the exit status."""
    sys.argv, sys.orig_argv = list(argv), [sys.executable, *argv]
    module = ModuleType("__main__")
    module.__dict__.update(__file__=argv[0], __cached__=None, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    code = 0
    try:
        exec(compile(Path(argv[0]).read_bytes(), argv[0], "exec", dont_inherit=True), module.__dict__)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        code = 1
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    return code


def end_descendants() -> None:
    """Kill all processes below this one, those of other sessions too, and reap them."""
    while below := list(descendants()):
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(POLL_SECONDS)


def descendants() -> Iterator[int]:
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                # The name of a program, in brackets, may hold anything.
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    yield from below - {os.getpid()}


def main() -> None:
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a module prints when it is imported is no answer
    doors: dict[str, Callable[..., dict[str, Any]]] = {"preload": preload, "trial": trial}
    for line in sys.stdin:
        asked = json.loads(line)
        answers.write(json.dumps(doors[asked.pop("do")](**asked)) + "\n")


if __name__ == "__main__":
    main()

"""Run the user's script as python itself would, under the plan that ADVISOR_PLAN names. torchrun starts one per rank.

The script can't tell that we are there: what `python SCRIPT` sets (`__main__`, `sys.argv`, `sys.path`, tracebacks, exit
status) is set the same way; no module, variable or path of ours stays behind. What fails in here never stops training.
"""

import atexit
import contextlib
import ctypes
import functools
import json
import os
import signal
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

PR_SET_PDEATHSIG = 1
OURS = str(Path(__file__).parents[1])


def load(name: str) -> Any:
    """Load a file of ours without entering it in sys.modules, where a user's module of that name belongs."""
    module = ModuleType(f"advisor.executor.in_process.{name}")
    SourceFileLoader(module.__name__, f"{OURS}/in_process/{name}.py").exec_module(module)
    return module


def redirect(outputs: list[dict[str, str]]) -> None:
    """Send this rank's streams to where the launcher reads and logs them."""
    for stream, path in outputs[int(os.environ["RANK"])].items():
        # A session leader that opens a terminal without O_NOCTTY is given it as controlling terminal.
        file = os.open(path, os.O_WRONLY | os.O_NOCTTY)
        os.dup2(file, int(stream))
        os.close(file)


def attach(plan_file: Path, outputs: str | None, watch: str | None, trial: str | None, plain: str | None) -> Any:
    """Put the plan into effect and start the records; return the recorder."""
    # An agent that is killed outright can't stop its workers, and they would wait for each other for ever.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if outputs is not None:
        redirect(json.loads(outputs))
    hooks, ranks, rank = load("hooks"), plan_file.parent / "ranks", int(os.environ["RANK"])
    recorder = load("recorder").Recorder(ranks, rank)
    atexit.register(hooks.failing_open(recorder.close))
    hooks.install(json.loads(plan_file.read_bytes()), recorder, *(x and json.loads(x) for x in (trial, plain)))
    if watch is not None:
        start = functools.partial(load("beacon").start, watch, rank, ranks / f"{rank}.stack", OURS)
        # A thread only where torch, with threads of its own, is there: else python warns of each fork.
        sys.meta_path.insert(0, hooks._AfterImport({"torch.distributed.rendezvous": [lambda _: start()]}))
    return recorder


def fresh_main(path: str) -> ModuleType:
    """Make the `__main__` that this version of python would give the script at `path`."""
    native = {name: value for name, value in globals().items() if name.startswith("__")}
    module = ModuleType("__main__")
    module.__dict__.clear()
    module.__dict__.update(
        native | {"__doc__": None, "__loader__": SourceFileLoader("__main__", path), "__file__": path}
    )
    return module


def main() -> None:
    sys.orig_argv.remove(sys.argv.pop(0))
    path = os.path.join(os.getcwd(), sys.argv[0])  # noqa: PTH109, PTH118 - python keeps "./" and ".." in __file__
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))  # noqa: PTH120 - as python does, before any import of theirs
    traces, recorder = load("traces"), None
    must = "ADVISOR_TRIAL" in os.environ or "ADVISOR_PLAIN" in os.environ
    names = ("ADVISOR_OUTPUT", "ADVISOR_WATCH", "ADVISOR_TRIAL", "ADVISOR_PLAIN")
    try:
        given = [os.environ.pop(name, None) for name in names]
        recorder = attach(Path(os.environ.pop("ADVISOR_PLAN")), *given)
    except Exception as error:
        if must:
            raise  # nothing would hold a trial back from writing, or have the ranks of a plain script train together
        sys.stderr.write(f"advisor: the plan is not in effect and nothing is recorded: {error!r}\n")
    sys.modules["__main__"] = module = fresh_main(path)
    try:
        code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
        exec(code, module.__dict__)
    except BaseException as error:
        traces.take_over(error, OURS)
        if recorder is not None:
            recorder.exit_code = traces.exit_code(error)
            if recorder.exit_code:
                with contextlib.suppress(Exception):  # a full disk must not hide the error
                    recorder.note("failed", **traces.describe(error))
        raise


main()

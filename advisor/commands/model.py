"""Trace the model that `--model` names, in a process of its own: the user's code and torch stay out of this one."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from advisor.rules.errors import AdvisorError
from advisor.rules.profile import Precision, Profile
from advisor.trace.messages import Reply, Request

TIME_LIMIT = 180.0  # seconds; a hundred blocks take less than a minute
LONGEST = 200  # characters of what the process said last
FALL_BACK = "describe the model instead, with --params or --layers and --hidden"


def trace_model(
    model: str,
    *,
    precisions: tuple[Precision, ...],
    seq: int | None = None,
    shape: tuple[int, ...] | None = None,
    folder: Path | None = None,
) -> tuple[Profile, ...]:
    """Return the profiles of a model, one for each precision. Arguments and errors as those of `reply_of`."""
    return reply_of(Request(model=model, precisions=precisions, seq=seq, shape=shape), folder=folder).profiles


def reply_of(request: Request, *, folder: Path | None = None, limit: float = TIME_LIMIT) -> Reply:
    """Return the profiles of a model, and what was assumed of its input.

    folder: what the model is imported from (default: the working directory); limit: in seconds. Raises AdvisorError
    where the model can't be traced. Nothing of the process is left when this returns.
    """
    with tempfile.TemporaryDirectory(prefix="advisor-trace-") as name:
        mail = Path(name)
        (mail / "request.json").write_bytes(msgspec.json.encode(request))
        ended = _run(mail, folder or Path.cwd(), limit)
        try:
            reply = msgspec.json.decode((mail / "reply.json").read_bytes(), type=Reply)
        except FileNotFoundError:
            raise _without_reply(request.model, ended, limit, mail / "output") from None
    if reply.failure is not None:
        raise AdvisorError(reply.failure.message, reply.failure.hint)
    return reply


def _run(mail: Path, folder: Path, limit: float) -> int | None:
    """Run the tracer and return its exit status, None where the time was over. What the model prints goes to a file."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TORCH_COMPILE_DISABLE": "1"}
    with (mail / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "advisor.trace", str(mail)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):  # it may have left processes of its own
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _without_reply(model: str, ended: int | None, limit: float, output: Path) -> AdvisorError:
    if ended is None:
        return AdvisorError(f"{model} was not traced within {limit:g} s", f"trace a smaller model, or {FALL_BACK}")
    said = [line for line in output.read_text(errors="replace").splitlines() if line.strip()]
    how = f"was ended by signal {-ended}" if ended < 0 else f"left with status {ended}"
    last = f": {said[-1].strip()[:LONGEST]}" if said else ""
    return AdvisorError(f"the process that traced {model} {how}{last}", FALL_BACK)

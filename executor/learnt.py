"""Plans that trials have chosen, kept for the same script with the same arguments on the same machine.

Nothing here fails a command: what can't be read is not known, what can't be written is one line.
"""

import hashlib
import os
from pathlib import Path

import msgspec

from advisor.executor.calibrate import Task
from advisor.executor.folder import write_whole
from advisor.executor.machine_store import folder as machines
from advisor.executor.own_modules import own_modules
from advisor.rules.identity import identity_of
from advisor.rules.machine import Value
from advisor.rules.plan import Plan
from advisor.rules.trial import Calibrated

VERSION = 1


class Learnt(Value, frozen=True, kw_only=True):
    version: int = VERSION
    date: str  # ISO 8601 with offset
    calibrated: Calibrated


def recall(task: Task, own: Plan) -> Learnt | None:
    """Return what trials chose for the same script before; None where nothing is known, or not by this version."""
    try:
        found = msgspec.json.decode(_path(task, own).read_bytes(), type=Learnt)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return found if found.version == VERSION else None


def keep(task: Task, own: Plan, date: str, calibrated: Calibrated) -> str | None:
    """Keep what trials chose, if they came to a choice; return a line that says why that was not possible."""
    if not calibrated.tried:
        return None
    path = _path(task, own)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(Learnt(date=date, calibrated=calibrated)))
    except OSError as error:
        return f"what the trials chose is not kept: can't write {path}: {error.strerror}"
    return None


def _path(task: Task, own: Plan) -> Path:
    """Name the file after all that the choice depends on: sources, arguments, machine, and what may be tried."""
    told = hashlib.sha256(identity_of(task.machine, os.uname().nodename).fingerprint.encode())
    sources = [Path(module.path).read_bytes() for module in own_modules(Path(task.script))]
    for part in (*sources, msgspec.json.encode([task.arguments, task.only, task.allow, own])):
        told.update(hashlib.sha256(part).digest())
    return machines().with_name("scripts") / f"{told.hexdigest()[:32]}.json"

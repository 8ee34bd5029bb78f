"""What was measured on this machine, kept in the user's cache folder: one file for each identity of a machine.

Nothing here ever fails a command: what can't be read or written is one line in `notes`, or returned.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from advisor.executor.folder import write_whole
from advisor.rules.identity import Identity, changes, identity_of, same_host
from advisor.rules.machine import Machine, Value
from advisor.rules.measurements import VERSION, Links, Measurements, RunRatio, with_links, with_run

MOST_FILES = 200  # that are looked through for an earlier identity of the same host


class Kept(Value, frozen=True, kw_only=True):
    """What the store says of a machine."""

    measurements: Measurements | None = None
    notes: tuple[str, ...] = ()  # why nothing is used, one line each


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the store, as the XDG specification has it: only an absolute XDG_CACHE_HOME counts."""
    given = Path(environ.get("XDG_CACHE_HOME", ""))
    try:
        cache = given if given.is_absolute() else Path.home() / ".cache"
    except RuntimeError:  # a container run under a user that it does not know
        cache = Path("/nonexistent")
    return cache / "advisor" / "machines"


def recall(machine: Machine) -> Kept:
    """Return what is kept of a machine; where it is kept of the same host in another state, say what has changed."""
    identity = identity_of(machine, os.uname().nodename)
    path = _path(identity)
    if path.exists():
        found = _read(path)
        if isinstance(found, str):
            return Kept(notes=(f"{found}; measure again: advisor probe --measure",))
        return Kept(measurements=found)
    earlier = max(_of_same_host(identity), key=_date, default=None)
    if earlier is None:
        return Kept()
    changed = "; ".join(changes(earlier.identity, identity))
    note = f"measurements of {_date(earlier)[:10]} are not used, this machine has changed: {changed}"
    return Kept(notes=(note,))


def fresh(machine: Machine) -> Measurements:
    """Return what is kept of a machine before anything was measured."""
    return Measurements(identity=identity_of(machine, os.uname().nodename))


def keep_links(machine: Machine, links: Links) -> str | None:
    """Keep measured links; return a line that says why that was not possible."""
    return _write(with_links(_kept(machine), links))


def keep_run(machine: Machine, run: RunRatio) -> str | None:
    """Keep how far off a prediction was; return a line that says why that was not possible."""
    return _write(with_run(_kept(machine), run))


def _kept(machine: Machine) -> Measurements:
    kept = recall(machine).measurements
    return fresh(machine) if kept is None else kept


def _path(identity: Identity) -> Path:
    return folder() / f"{identity.fingerprint}.json"


def _read(path: Path) -> Measurements | str:
    """Read one file; a line that says what is wrong where it is none of ours."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Measurements)
    except OSError as error:
        return f"can't read {path}: {error.strerror}"
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return f"{path} is damaged and not used: {error}"
    return found if found.version == VERSION else f"{path} has version {found.version}, not {VERSION}, and is not used"


def _write(measurements: Measurements) -> str | None:
    path = _path(measurements.identity)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.format(msgspec.json.encode(measurements), indent=2) + b"\n")
    except OSError as error:
        return f"what was measured is not kept: can't write {path}: {error.strerror}"
    return None


def _of_same_host(identity: Identity) -> Iterator[Measurements]:
    try:
        paths = sorted(folder().glob("*.json"))[:MOST_FILES]
    except OSError:
        return
    for path in paths:
        found = _read(path)
        if isinstance(found, Measurements) and same_host(found.identity, identity):
            yield found


def _date(measurements: Measurements) -> str:
    dates = [run.date for run in measurements.runs[-1:]]
    return max([measurements.links.date, *dates] if measurements.links else dates, default="")

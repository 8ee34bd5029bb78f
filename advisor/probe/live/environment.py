"""Collect the variables that steer NCCL, CUDA, torch and the launcher, also from NCCL's own files."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from advisor.probe.live.sysfs import ROOT
from advisor.probe.steering import steers


def read_environment(
    environ: Mapping[str, str] | None = None, home: Path | None = None, root: Path = ROOT
) -> tuple[dict[str, str], dict[str, str]]:
    """Return each steering variable's value, and for those that a file of NCCL sets, that file.

    The order is NCCL's (src/misc/param.cc): the process environment; the file that NCCL_CONF_FILE names or, only if
    that is unset, ~/.nccl.conf; then /etc/nccl.conf. A file never overrides what is set before it.
    """
    given = os.environ if environ is None else environ
    values = {name: value for name, value in given.items() if steers(name)}
    files: dict[str, str] = {}
    for label, name, value in _in_files(given, home, root):
        if name not in given and name not in files:
            values[name], files[name] = value, label
    return values, files


def read_hidden(
    values: Mapping[str, str], environ: Mapping[str, str] | None = None, home: Path | None = None, root: Path = ROOT
) -> dict[str, str]:
    """Return the variables whose value in a file of NCCL is another than the one in effect, with that file."""
    given = os.environ if environ is None else environ
    found: dict[str, str] = {}
    for label, name, value in _in_files(given, home, root):
        if values.get(name, value) != value:
            found.setdefault(name, label)
    return found


def _in_files(given: Mapping[str, str], home: Path | None, root: Path) -> Iterator[tuple[str, str, str]]:
    """Yield file, name and value of each line, the file that counts more first."""
    own = given.get("NCCL_CONF_FILE")
    layers = [(own, Path(own))] if own else [("~/.nccl.conf", (home or _home()) / ".nccl.conf")]
    for label, path in [*layers, ("/etc/nccl.conf", root / "etc/nccl.conf")]:
        for name, value in _assignments(path):
            if name.startswith("NCCL_"):
                yield label, name, value


def _assignments(path: Path) -> Iterator[tuple[str, str]]:
    """Read NAME=value lines as NCCL does: a # in the first column is a comment, nothing is stripped or unquoted."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            yield name, value


def _home() -> Path:
    """Return the home folder of the password database, which NCCL asks; HOME does not count."""
    import pwd

    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a container run under a user that it does not know
        return Path("/nonexistent")

"""Changed files: their diff, and writing them whole."""

import contextlib
import difflib
import os
import tempfile
from pathlib import Path

from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Value


class Change(Value, frozen=True, kw_only=True):
    """A file as it was read, and as it is to be."""

    file: str
    before: bytes
    after: bytes

    @property
    def diff(self) -> str:
        """Spell the change as `diff -u` does; line ends other than a newline are not shown."""
        before, after = (content.decode("utf-8", "replace").splitlines() for content in (self.before, self.after))
        lines = difflib.unified_diff(before, after, self.file, f"{self.file} (fixed)", lineterm="")
        return "".join(f"{line}\n" for line in lines)


def content_of(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise AdvisorError(f"can't read {file}: {error.strerror}", "run advisor check again") from error


def rewrite(change: Change) -> None:
    """Write a changed file so that it is the old one or the new one whatever happens; its mode stays.

    Raises AdvisorError where it can't be written, or is no longer what was read.
    """
    path = Path(change.file).resolve()  # what a link points to is changed, the link stays
    try:
        if path.read_bytes() != change.before:
            raise AdvisorError(f"{change.file} has changed meanwhile, and is left as it is", "run advisor check again")
        _replace(path, change.after)
    except OSError as error:
        hint = "give the file and its folder write permission, or copy the lines from the diff"
        raise AdvisorError(f"can't write {change.file}: {error.strerror}", hint) from error


def _replace(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), path.stat().st_mode & 0o7777)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name, too, outlives a loss of power
    finally:
        os.close(folder)

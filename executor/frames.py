"""Lines of code that a rank stood in, and which of them are the user's own."""

from collections.abc import Iterable

from advisor.rules.machine import Value

LIBRARIES = ("site-packages/", "dist-packages/", "/lib/python", "<")


class Frame(Value, frozen=True, kw_only=True):
    file: str
    line: int
    name: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.name}{f': {self.text}' if self.text else ''}"


def own_line(stack: Iterable[Frame]) -> Frame | None:
    """Return the innermost frame of the user's own code, else the innermost; `stack` begins with the innermost."""
    frames = tuple(stack)
    own = (frame for frame in frames if not any(part in frame.file for part in LIBRARIES))
    return next(own, next(iter(frames), None))

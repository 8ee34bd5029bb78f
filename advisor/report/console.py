"""From a renderable to the text of one stream: its width, its colours, its character set."""

import io
import os
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console, Group, RenderableType

PIPE_WIDTH = 100
GLUE = "\ue000"  # stands for a blank at which no line may be broken; rich breaks at U+00A0 too
_NARROWEST = 60  # below it the terminal wraps the lines itself
_ASCII = str.maketrans({"█": "#", "░": ".", "│": "|", "─": "-", "—": "-", "…": "..."})


def text_for(stream: TextIO, renderable: RenderableType, environ: Mapping[str, str] = os.environ) -> str:
    """Render for a stream, with the colours, width and characters that it can show."""
    text = render(renderable, width=width_of(stream, environ), colour=wants_colour(stream, environ))
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    return text


def render(renderable: RenderableType, *, width: int, colour: bool) -> str:
    """Render at a width; without colour the text holds no escape codes at all."""
    console = Console(
        file=io.StringIO(),
        width=width,
        height=100,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=False,
        force_jupyter=False,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as capture:
        console.print(Group(renderable), crop=False)  # a Text alone would lose its `no_wrap` here
    return "".join(f"{line.rstrip()}\n" for line in capture.get().replace(GLUE, " ").splitlines())


def wants_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Follow https://no-color.org and https://force-color.org; else colour belongs to terminals."""
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return environ["FORCE_COLOR"] != "0"
    return stream.isatty() and environ.get("TERM") != "dumb"


def width_of(stream: TextIO, environ: Mapping[str, str] = os.environ) -> int:
    """Ask COLUMNS, then the terminal. A pipe gets at least 100 columns."""
    columns = environ.get("COLUMNS", "")
    asked = int(columns) if columns.isdecimal() else 0
    if not stream.isatty():
        return max(asked, PIPE_WIDTH)
    if not asked:
        asked = os.get_terminal_size(stream.fileno()).columns or 80  # serial lines report 0
    return max(asked, _NARROWEST)

"""What each kind of stream gets: width, colours, characters."""

import io
import os
import pty
from collections.abc import Iterator
from contextlib import closing

import pytest
from rich.text import Text

from advisor.report.console import PIPE_WIDTH, text_for, wants_colour, width_of

RED = Text("error", style="red")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal() -> Iterator[io.TextIOWrapper]:
    """Open a real pseudo-terminal."""
    ours, theirs = pty.openpty()
    with closing(os.fdopen(theirs, "w")) as stream:
        yield stream
    os.close(ours)


@pytest.mark.parametrize(
    ("terminal", "environ", "colour"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (False, {"FORCE_COLOR": "1"}, True),
        (True, {"FORCE_COLOR": "0"}, False),
        (False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colour_is_for_terminals_unless_the_environment_says_otherwise(
    terminal: bool, environ: dict[str, str], colour: bool
) -> None:
    stream = Terminal() if terminal else io.StringIO()
    assert wants_colour(stream, environ) is colour
    assert ("\x1b[" in text_for(stream, RED, {"COLUMNS": "80"} | environ)) is colour


@pytest.mark.parametrize(("columns", "width"), [({}, PIPE_WIDTH), ({"COLUMNS": "40"}, 100), ({"COLUMNS": "160"}, 160)])
def test_a_pipe_has_at_least_a_hundred_columns(columns: dict[str, str], width: int) -> None:
    assert width_of(io.StringIO(), columns) == width


def test_a_terminal_without_a_size_has_eighty_columns(terminal: io.TextIOWrapper) -> None:
    assert width_of(terminal, {}) == 80


def test_the_terminal_is_asked_for_its_width(terminal: io.TextIOWrapper) -> None:
    termios = pytest.importorskip("termios")
    termios.tcsetwinsize(terminal.fileno(), (24, 132))
    assert width_of(terminal, {}) == 132


def test_a_stream_without_block_characters_gets_plain_ones() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert text_for(stream, Text("██ │ é"), {}) == "## | ?\n"


def test_lines_have_no_blanks_at_their_end() -> None:
    assert text_for(io.StringIO(), Text("a  \nb "), {}) == "a\nb\n"

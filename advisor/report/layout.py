"""The few blocks that every report is made of: headings, tables, labelled lines, commands, bars' colours."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from advisor.report.console import GLUE

INDENT = 2
PROSE_WIDTH = 110  # longer lines are hard to read
LABEL_WIDTH = 32
NOTE_WIDTH = 40  # a note stands beside its row only where it has this much room
GAP = 2
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=([kMGTP]?i?B(/s)?|[mun]?s|min|h|d|%|tokens/s|samples/s)\b|%)")


class Column(NamedTuple):
    title: str
    justify: Literal["left", "right"] = "left"
    folds: bool = False  # may be wrapped where the table is too wide; the others never are


class Row(NamedTuple):
    cells: tuple[str | Text, ...]
    note: Text | None = None


class Grid:
    """A table without lines, never cut: columns that don't fit go into a second table with the same first column.

    A row's note stands beside it where all notes have room, else under it.
    """

    def __init__(self, columns: Sequence[Column], rows: Iterable[Row | tuple[str | Text, ...]], note: str = "") -> None:
        self.columns = columns
        self.rows = [row if isinstance(row, Row) else Row(row) for row in rows]
        self.note = note

    def without_empty(self, empty: str) -> "Grid":
        """Leave out the columns that hold nothing but `empty`."""
        return self._part([i for i in range(len(self.columns)) if any(str(row.cells[i]) != empty for row in self.rows)])

    def _part(self, kept: Sequence[int], *, notes: bool = True) -> "Grid":
        rows = [Row(tuple(row.cells[i] for i in kept), row.note if notes else None) for row in self.rows]
        return Grid([self.columns[i] for i in kept], rows, self.note)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = self._widths(options.max_width)
        fitting = [i for i in range(len(widths)) if sum(widths[: i + 1]) + GAP * i <= options.max_width]
        if 2 <= len(fitting) < len(widths):
            yield self._part(fitting, notes=False)
            yield Text()
            yield self._part([0, *range(len(fitting), len(widths))])
            return
        room = options.max_width - sum(widths) - GAP * len(widths)
        beside = room >= NOTE_WIDTH
        titles = [Text(column.title, style="dim") for column in self.columns]
        yield from self._lines(console, titles, widths, Text(self.note if beside else "", style="dim"), room)
        for row in self.rows:
            cells = [cell if isinstance(cell, Text) else Text(cell) for cell in row.cells]
            yield from self._lines(console, cells, widths, row.note if beside else None, room)
            if row.note is not None and not beside:
                yield Padding(row.note, (0, 0, 0, 2 * GAP))

    def _widths(self, available: int) -> list[int]:
        widths = [
            max(len(column.title), *(_length(row.cells[index]) for row in self.rows), 0)
            for index, column in enumerate(self.columns)
        ]
        surplus = sum(widths) + GAP * (len(widths) - 1) - available
        for index, column in enumerate(self.columns):
            if column.folds and surplus > 0:
                narrowed = max(len(column.title), 12, widths[index] - surplus)
                narrowed = min(narrowed, widths[index])
                surplus -= widths[index] - narrowed
                widths[index] = narrowed
        return widths

    def _lines(
        self, console: Console, cells: Sequence[Text], widths: Sequence[int], note: Text | None, room: int
    ) -> Iterator[Text]:
        wrapped = [list(cell.wrap(console, width)) for cell, width in zip(cells, widths, strict=True)]
        notes = list(note.wrap(console, room)) if note is not None else []
        for line in range(max([len(notes), *(len(lines) for lines in wrapped)])):
            text = Text(no_wrap=True, overflow="ignore")
            for column, lines, width in zip(self.columns, wrapped, widths, strict=True):
                cell = lines[line] if line < len(lines) else Text()
                space = " " * (width - cell.cell_len)
                text.append_text(Text(space) + cell if column.justify == "right" else cell + Text(space))
                text.append(" " * GAP)
            yield text + notes[line] if line < len(notes) else text


class Command:
    """A command to copy: lines that are too long end in a backslash, so that the copy still runs."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [""]
        room = options.max_width - len("     \\")
        words = [
            part for word in _words(self.command) for part in ([word] if len(word) <= room else word.split(" ", 1))
        ]
        for word in words:
            if lines[-1] and len(lines[-1]) + 1 + len(word) > options.max_width - len(" \\"):
                lines.append("    " + word)
            else:
                lines[-1] = f"{lines[-1]} {word}".lstrip() if len(lines) == 1 else f"{lines[-1]} {word}"
        for line in [*(f"{line} \\" for line in lines[:-1]), lines[-1]]:
            # A path longer than the terminal is wide goes on at its edge, rather than being cut.
            whole = len(line) <= options.max_width
            yield Text(line, style="bold", no_wrap=whole, overflow="ignore" if whole else "fold")


def section(title: str, *body: RenderableType) -> Group:
    """Set a heading over indented blocks."""
    return Group(Text(title, style="bold"), *(indented(block) for block in body))


def indented(block: RenderableType) -> RenderableType:
    return Padding(block, (0, 0, 0, INDENT))


def prose(text: str, style: str = "") -> RenderableType:
    """Set a sentence, wrapped where it reads well."""
    return Constrain(sentence(text, style), PROSE_WIDTH)


def sentence(text: str, style: str = "") -> Text:
    """Make a text that is never broken between a number and its unit."""
    return Text(_BEFORE_UNIT.sub(GLUE, text), style=style)


def listed(parts: Iterable[str], separator: str = ", ") -> Text:
    """Join short texts into one that is broken only between them."""
    return Text(separator.join(part.replace(" ", GLUE) for part in parts))


def labelled(rows: Sequence[tuple[str, RenderableType]]) -> RenderableType:
    """Set values beside their labels; long values wrap under themselves."""
    width = min(LABEL_WIDTH, max((cell_len(label) for label, _ in rows), default=0))
    table = Table.grid(padding=(0, GAP, 0, 0))
    table.add_column(style="dim", width=width, overflow="fold")
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(Text(label), sentence(value) if isinstance(value, str) else value)
    return Constrain(table, PROSE_WIDTH)


def stack(*blocks: RenderableType | None) -> Group:
    """Set blocks below each other with an empty line between; None is left out."""
    lines: list[RenderableType] = []
    for block in blocks:
        if block is not None:
            lines += [Text(), block] if lines else [block]
    return Group(*lines)


def one_line(text: Text) -> Text:
    """Keep a line whole however narrow the terminal: `-q` promises one line."""
    text.no_wrap, text.overflow = True, "ignore"
    return text


def _words(command: str) -> list[str]:
    """Split at blanks outside quotes, and keep the quotes; an option stays with its value."""
    words: list[str] = []
    for word in re.findall(r"""(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])+""", command):
        if words and re.fullmatch(r"--?\w[\w-]*", words[-1]) and not word.startswith("-"):
            words[-1] += f" {word}"
        else:
            words.append(word)
    return words


def _length(cell: str | Text) -> int:
    return cell.cell_len if isinstance(cell, Text) else cell_len(cell)

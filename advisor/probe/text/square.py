"""Find square matrices in a text, names of GPUs above rows of cells, as `topo -p2p` and `rocm-smi` print them.

The names that stand last before a row are its header: lost newlines and tabs, and prefixes of lines, do no harm.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MOST_GPUS = 512  # a longer header is no header
BEFORE, AFTER = 20_000, 200_000  # characters kept around the first row of a long log; 64 GPUs take 50 000


class Square(NamedTuple):
    title: str  # the last one before the header, "" for none
    gpus: tuple[str, ...]
    cells: dict[tuple[str, str], str]  # what is printed at (row, column), without the diagonal
    lost: tuple[str, ...]  # the names of rows of which cells could not be placed


class Layout(NamedTuple):
    token: re.Pattern[str]
    cell: re.Pattern[str]
    row: re.Pattern[str]  # the beginning of a row
    own: str  # what stands on the diagonal


class Row(NamedTuple):
    label: str
    cells: list[str]
    cut: bool  # the text ends with the last cell, or inside it


class Matrix(NamedTuple):
    """A matrix while its rows are collected."""

    title: str
    header: list[str]
    rows: list[Row]


def layout(title: str, cell: str, own: str) -> Layout:
    """Make a layout from the patterns of a title and a cell; names and cells may stand glued to the next."""
    any_cell = f"{cell}|{own}"
    token = rf"""(?P<title>{title})
        |(?<![A-Za-z_.-])GPU(?P<gpu>\d{{1,4}})(?=GPU\d|[^\w.:\[-]|$)
        |(?<![\w/.-])(?P<cells>(?:{any_cell})++)(?![\w/.-]|[ \t]{{0,8}}[=:])
        |(?P<other>[\w.-]+|[^\s\w])"""
    row = rf"GPU\d{{1,4}}\s{{1,99}}(?:{own}\s{{1,99}})?(?:{cell})"
    return Layout(re.compile(token, re.VERBOSE), re.compile(any_cell), re.compile(row), own)


def find_squares(text: str, kind: Layout) -> Iterator[Square]:
    """Yield the matrices of a text in order; of a long text those that lie around its first row."""
    first = kind.row.search(text)
    if first is None:
        return
    start = max(0, first.start() - BEFORE)
    text = text[start : start + BEFORE + AFTER]
    matrix: Matrix | None = None
    header: list[str] = []  # names under which no row has been read
    for title, names, row in _runs(text, kind):
        header = list(dict.fromkeys(names)) or header
        if len(header) > MOST_GPUS:
            header = []
        if row is None:
            continue
        if row.label in header:
            if matrix is not None:
                yield _square(matrix, kind)
            matrix, header = Matrix(title, header, []), []
        if matrix is not None and len(matrix.rows) < MOST_GPUS:
            matrix.rows.append(row)
    if matrix is not None:
        yield _square(matrix, kind)


def _runs(text: str, kind: Layout) -> Iterator[tuple[str, list[str], Row | None]]:
    """Yield each run of names and the row that its last name starts, if cells follow, with the last title before."""
    title = ""
    names: list[str] = []
    cells: list[str] = []
    for token in kind.token.finditer(text):
        if token["cells"] and names:
            cells += kind.cell.findall(token["cells"])
            continue
        if cells or (names and not token["gpu"]):
            yield title, names[:-1] if cells else names, Row(names[-1], cells, cut=False) if cells else None
            names, cells = [], []
        if token["gpu"]:
            names.append(f"GPU{token['gpu']}")
        title = token["title"] or title
    if cells:
        yield title, names[:-1], Row(names[-1], cells, cut=not text[-1:].isspace())


def _square(matrix: Matrix, kind: Layout) -> Square:
    """Place the cells; where the header lost its end, the labels of the rows tell the columns."""
    rows: dict[str, Row] = {}
    for row in matrix.rows:
        rows.setdefault(row.label, row)
    columns = list(dict.fromkeys((*matrix.header, *rows)))
    cells: dict[tuple[str, str], str] = {}
    lost = []
    for own, name in enumerate(columns):
        if name not in rows:
            continue
        row = rows[name]
        placed = _place(row, own, len(matrix.header), kind.own, is_last=row is matrix.rows[-1])
        if len(placed) < min(len(row.cells), len(matrix.header)):
            lost.append(name)
        cells |= {(name, column): cell for column, cell in zip(columns, placed, strict=False) if column != name}
    return Square(matrix.title, tuple(columns), cells, tuple(lost))


def _place(row: Row, own: int, width: int, mark: str, *, is_last: bool) -> Sequence[str]:
    """Return the cells that stand in their columns, from the first on.

    A row is in order if the mark of the diagonal is at its place. Cells that a row lost are those at its end if it is
    the last one, and may be any behind the mark if not.
    """
    cells = row.cells[:-1] if row.cut and len(row.cells) < width else row.cells
    if own < len(cells) and cells[own] != mark:
        return ()
    if len(cells) >= width or is_last:
        return cells
    return cells[: own + 1] if own < len(cells) else ()

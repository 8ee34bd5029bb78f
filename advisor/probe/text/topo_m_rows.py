"""Find the headers and rows of link matrices in a stream of tokens, and say which cell stands where.

A device name that a code follows starts a row; the run of names and titles right before a first row is the header. So
a matrix survives lost newlines, wraps, lost tabs and glued cells. Columns are asked only where cells are missing.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from advisor.probe.text.paste import Token

CPU, NUMA, GPU_NUMA = TITLES = "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"
END_WORDS = ("Legend", "Where")  # nothing below is a row
STATUSES = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})  # of `topo -p2p`, where links have codes
MOST_DEVICES = 512  # a longer header is no header
_UNKNOWN_CODE = re.compile(r"(?!N(?:V|OD?)?$|P[IHX]?$|S[YO]?$|C2?$)[A-Z][A-Z0-9]{0,4}|[-?*]")  # no beginning of a code
_NUMBERS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*[,-]?")
_DEVICE = re.compile(r"(?:GPU|NIC)\d+")


class Header(NamedTuple):
    devices: list[Token]
    titles: list[Token]
    start: int  # index of its first token
    first_row: int  # index of the first row's token


class Row(NamedTuple):
    label: Token
    codes: list[Token]
    values: list[Token]


Cells = dict[tuple[str, str], str]  # the code at (row, column)


def find_matrices(tokens: Sequence[Token]) -> Iterator[tuple[Header, list[Row]]]:
    """Find the link matrices of a text, those of `topo -p2p` left out."""
    headers = list(find_headers(tokens))
    ends = [header.start for header in headers[1:]] + [len(tokens)]
    for header, end in zip(headers, ends, strict=False):
        rows = read_rows(tokens[header.first_row : end], header)
        codes = {code.text for row in rows for code in row.codes}
        if not codes & STATUSES and (len(header.devices) == 1 or codes > {"X"}):
            yield header, rows


def find_headers(tokens: Sequence[Token]) -> Iterator[Header]:
    """Find the runs of names and titles that stand right before a row of one of these names."""
    start = 0  # of the run that ends at `index`
    for index, token in enumerate(tokens):
        if _starts_row(tokens, index):
            begin, end = _header_part(tokens, max(start, index - MOST_DEVICES), index)
            devices = [t for t in tokens[begin:end] if t.kind != "title"]
            if token.text in {t.text for t in devices}:
                yield Header(devices, _titles(tokens[begin:end]), begin, index)
        if token.kind not in ("device", "title", "gap"):
            start = index + 1


def _header_part(tokens: Sequence[Token], begin: int, row: int) -> tuple[int, int]:
    """Return the part of a run before a row that is a header: no name twice, from a GPU on, up to the last title.

    Names on lines above the one with the row's own name are prose, names behind titles are rows that lost their cells.
    """
    end = max((at + 1 for at in range(begin, row) if tokens[at].text in TITLES), default=row)
    seen: set[str] = set()
    start = end
    while start > begin and (tokens[start - 1].kind == "gap" or title_of(tokens[start - 1]) not in seen):
        start -= 1
        seen.add(title_of(tokens[start]))
    line = next((token.line for token in tokens[start:end] if token.text == tokens[row].text), 0)
    while start < end and not (tokens[start].text.startswith("GPU") and tokens[start].line >= line):
        start += 1
    return start, end


def _titles(run: Sequence[Token]) -> list[Token]:
    """Return the titles of a header. One that is cut counts in its turn only: GPU and N begin names as well."""
    titles: list[Token] = []
    for token in run:
        title = title_of(token)
        if token.text in TITLES or title in TITLES[len(titles) : len(titles) + 1]:
            titles.append(token)
    return titles


def read_rows(tokens: Sequence[Token], header: Header) -> list[Row]:
    """Read rows until the legend, or until a name comes again: then another matrix begins."""
    rows: list[Row] = []
    known, seen = {token.text for token in header.devices}, set[str]()
    index = 0
    while index < len(tokens) and tokens[index].text not in END_WORDS:
        label = tokens[index]
        index += 1
        of_cut_header = not header.titles and _DEVICE.fullmatch(label.text)
        if not _starts_row(tokens, index - 1) or not (label.text in known or of_cut_header):
            continue
        if label.text in seen:
            break
        seen.add(label.text)
        row, index = _read_row(tokens, index, header)
        rows.append(row)
    return rows


def _read_row(tokens: Sequence[Token], index: int, header: Header) -> tuple[Row, int]:
    """Read the row whose label stands before `index`; return it and the index behind it."""
    row = Row(tokens[index - 1], [], [])
    gaps = sum(token.kind == "gap" for token in header.devices)
    while index < len(tokens) and (tokens[index].kind in ("code", "gap") or _is_unknown_code(tokens, index)):
        if tokens[index].kind == "gap":
            gaps -= 1
        if gaps >= 0:  # behind cells that were left out nothing has a place
            row.codes.append(tokens[index])
        index += 1
    while index < len(tokens) and tokens[index].kind in ("value", "gap"):
        if tokens[index].kind == "value":
            row.values.append(tokens[index])
        index += 1
    return row._replace(values=_mended(row.values, len(header.titles))), index


def _mended(values: list[Token], titles: int) -> list[Token]:
    """Join a number that was broken at the end of a line, which shows in one value too many."""
    for index, (a, b) in enumerate(pairwise(values)):
        whole = _NUMBERS.fullmatch(a.text + b.text)
        if len(values) > titles and whole and b.line == a.line + 1 and b.column == 0:
            return [*values[:index], a._replace(text=a.text + b.text), *values[index + 2 :]]
    return values


def _is_unknown_code(tokens: Sequence[Token], index: int) -> bool:
    token = tokens[index]
    return token.kind == "other" and token.line == tokens[index - 1].line and bool(_UNKNOWN_CODE.fullmatch(token.text))


def place_cells(rows: Sequence[Row], header: Header, columns: Sequence[str]) -> tuple[Cells, list[str]]:
    """Return the cells, and in words what could not be placed."""
    width = len(header.devices)
    cells: Cells = {}
    lost: list[str] = []
    for row in rows:
        name = row.label.text
        placed = _place(row, header, columns.index(name))
        if len(placed) < (width if row.values else min(len(row.codes), width)):
            lost.append(f"cells are missing inside the row of {name}; what could not be placed was left out")
        cells |= {(name, columns[at]): code for at, code in placed.items() if code[0].isalpha()}
    for row in rows:
        if not row.values:  # its last code may be cut: NV1 of NV12
            last = (row.label.text, columns[min(len(row.codes), width) - 1])
            if last in cells and cells.get(last[::-1], "").startswith(cells[last]):
                del cells[last]
    return cells, lost


def _place(row: Row, header: Header, own: int) -> dict[int, str]:
    """Place a row's codes: in their order where that puts X on the diagonal, else by where they stand in the line.

    A row cut at its end is whole up to there. Where cells are missing inside, only those that are certain are placed.
    """
    width = len(header.devices)
    codes = [token.text for token in row.codes[:width]]
    diagonal = codes.index("X") if "X" in codes else None
    in_order = diagonal == own or (diagonal is None and len(codes) <= own)
    if in_order and len(codes) == width:
        return dict(enumerate(codes))
    by_column = _by_column(row, header, own)
    if by_column.get(own) == "X" and len(by_column) == len(codes):
        return by_column
    return dict(enumerate(codes[: own + 1] if row.values else codes)) if in_order else {}


def _by_column(row: Row, header: Header, own: int) -> dict[int, str]:
    """Place codes under the nearest names, X under its own, if header and row are one line each."""
    devices, codes = header.devices, row.codes[: len(header.devices)]
    crosses = [code for code in codes if code.text == "X"]
    apart = all(b.line == a.line and b.column > a.column + len(a.text) for a, b in pairwise(devices))
    if not apart or any(code.line != row.label.line for code in codes) or len(crosses) != 1 or own >= len(devices):
        return {}
    shift = _centre(crosses[0]) - _centre(devices[own])
    names = [_centre(name) + shift for name in devices]
    near = (names[-1] - names[0]) / max(1, len(names) - 1) / 2 - 1  # farther away a code may be another column's
    placed = {}
    for code in codes:
        right = bisect_left(names, _centre(code))
        at = min(range(max(0, right - 1), min(right + 1, len(names))), key=lambda at: abs(names[at] - _centre(code)))
        if abs(names[at] - _centre(code)) <= near:
            placed[at] = code.text
    return placed


def assign(row: Row, header: Header) -> dict[str, Token | None]:
    """Say which title each value of a row belongs to; None is a blank cell, a title left out was cut off.

    With fewer values than titles, those nearest to where the values stand are taken, the later one if it is a tie: an
    empty cell is printed without its padding. Where places say nothing, N/A closes the row.
    """
    titles, values = header.titles, row.values[: len(header.titles)]
    if not values:
        return {}
    if len(values) == len(titles):
        chosen: Sequence[Token] = titles
    elif _is_aligned(row, header):
        shift = round(_centre(row.codes[-1]) - _centre(header.devices[-1]))
        chosen = min(
            reversed(list(combinations(titles, len(values)))),
            key=lambda some: sum(abs(t.column + shift - v.column) for t, v in zip(some, values, strict=True)),
        )
    else:
        chosen = titles[-len(values) :] if values[-1].text == "N/A" else titles[: len(values)]
    last = titles.index(chosen[-1])
    cells: dict[str, Token | None] = {title_of(title): None for title in titles[:last]}
    return cells | {title_of(title): value for title, value in zip(chosen, values, strict=True)}


def _is_aligned(row: Row, header: Header) -> bool:
    """Say whether values stand under their titles: both lines whole, and more than one space between cells."""
    lines = {row.label.line, *(v.line for v in row.values)}, {header.devices[-1].line, *(t.line for t in header.titles)}
    if any(len(line) > 1 for line in lines) or len(row.codes) != len(header.devices):
        return False
    return any(b.column - a.column - len(a.text) > 1 for a, b in pairwise([row.codes[-1], *row.values]))


def title_of(token: Token) -> str:
    """Return the whole title of which a header may show the beginning; of a name the name."""
    if token.kind != "title":
        return token.text
    return next((title for title in TITLES if title.startswith(token.text)), token.text)


def _starts_row(tokens: Sequence[Token], index: int) -> bool:
    return tokens[index].kind == "device" and index + 1 < len(tokens) and tokens[index + 1].kind == "code"


def _centre(token: Token) -> float:
    return token.column + len(token.text) / 2

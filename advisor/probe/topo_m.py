"""Read what `nvidia-smi topo -m` prints, however it was pasted.

The text is read as a stream of tokens, not of lines: device names, codes, values and column titles. A device name that
a code follows starts a row; the run of names and titles before the first row is the header. So a matrix survives lost
newlines, hard wraps, lost tabs, glued cells, prompts, quotes and comments. Where a line is whole, the columns at which
values stand tell blank cells apart.
"""

import re
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from msgspec import field

from advisor.probe.paste import Token, tokens_of
from advisor.probe.topo_m_refusal import refusal
from advisor.rules.errors import AdvisorError
from advisor.rules.links import kind_of_code
from advisor.rules.machine import Gpu, Link, Machine, Nic, Unknown, Value

Numa = int | tuple[int, ...] | None
CPU, NUMA, GPU_NUMA = "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"
END_WORDS = ("Legend", "Where")  # nothing below is a row
MOST_CPUS = 16384  # a longer list is no list of CPUs
MOST_DEVICES = 512  # a longer header is no header
_NIC_LEGEND = re.compile(r"\b(NIC\d+):[ \t]+([A-Za-z]\S*)")


class TopoMatrix(Value, frozen=True, kw_only=True):
    """A link matrix as printed. A device whose row the paste has lost has no entry; None: there is no such column."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    links: tuple[tuple[str, str, str], ...]  # (a, b, code), a before b in the order of the columns
    cpu_affinity: dict[str, tuple[int, ...]] | None = None  # () is a blank cell
    numa: dict[str, Numa] | None = None
    gpu_numa_id: dict[str, int | None] | None = None
    nic_names: dict[str, str] = field(default_factory=dict)
    lost: tuple[str, ...] = ()  # what could not be placed, in words


class Header(NamedTuple):
    devices: list[Token]
    titles: list[Token]
    first_row: int  # index of the first row's token


class Row(NamedTuple):
    label: Token
    codes: list[Token]
    values: list[Token]


def machine_from_topo_m(text: str, source: str) -> Machine:
    """Build a Machine from the text of a link matrix. Raises AdvisorError where there is none."""
    matrix = parse_topo_m(text)
    affinity, numa, own_numa = matrix.cpu_affinity or {}, matrix.numa or {}, matrix.gpu_numa_id or {}
    gpus = tuple(
        Gpu(
            id=gpu,
            index=index,
            numa=numa.get(gpu),
            cpu_affinity=affinity.get(gpu),
            gpu_numa_id=own_numa.get(gpu),
        )
        for index, gpu in enumerate(matrix.gpus)
    )
    links = (Link(a=a, b=b, code=code, kind=kind) for a, b, code in matrix.links if (kind := kind_of_code(code)))
    return Machine(
        gpus=gpus,
        nics=tuple(Nic(id=nic, name=matrix.nic_names.get(nic)) for nic in matrix.nics),
        links=tuple(links),
        unknown=tuple(Unknown(what="links", why=words) for words in matrix.lost),
        source=source,
    )


def parse_topo_m(text: str) -> TopoMatrix:
    """Read the first link matrix in a text.

    Raises AdvisorError where there is no matrix, and where two cells of one pair contradict each other.
    """
    tokens = tokens_of(text)
    header = find_header(tokens)
    if header is None:
        raise refusal(text)
    columns = [token.text for token in header.devices]
    rows = read_rows(tokens[header.first_row :], columns)
    cells, lost = place_cells(rows, header)
    if len(columns) > 1 and set(cells.values()) <= {"X"}:
        raise refusal(text)
    affinity: dict[str, dict[str, Token | None]] = {row.label.text: assign(row, header) for row in rows}
    gpus = tuple(name for name in columns if name.startswith("GPU"))
    titles = [token.text for token in header.titles]

    def column(title: str) -> dict[str, Token | None] | None:
        if title not in titles:
            return None
        return {gpu: affinity[gpu][title] for gpu in gpus if title in affinity.get(gpu, {})}

    cpus, numas, own = column(CPU), column(NUMA), column(GPU_NUMA)
    return TopoMatrix(
        gpus=gpus,
        nics=tuple(name for name in columns if not name.startswith("GPU")),
        links=links_of(cells, columns),
        cpu_affinity=None if cpus is None else {gpu: _numbers(cell) for gpu, cell in cpus.items()},
        numa=None if numas is None else {gpu: _numa(cell) for gpu, cell in numas.items()},
        gpu_numa_id=None if own is None else {gpu: next(iter(_numbers(cell)), None) for gpu, cell in own.items()},
        nic_names={nic: name for nic, name in _NIC_LEGEND.findall(text) if nic in columns},
        lost=tuple(lost),
    )


def find_header(tokens: Sequence[Token]) -> Header | None:
    """Find the names and titles that stand right before a first row."""
    start = 0  # of the run of names and titles that ends at `index`
    for index, token in enumerate(tokens):
        if token.kind not in ("device", "title"):
            start = index + 1
        if not _starts_row(tokens, index):
            continue
        run = list(tokens[start:index])
        while run and not run[0].text.startswith("GPU"):
            del run[0]
        devices = [t for t in run if t.kind == "device"]
        if 0 < len(devices) <= MOST_DEVICES and len({t.text for t in run}) == len(run):
            return Header(devices, [t for t in run if t.kind == "title"], index)
    return None


def read_rows(tokens: Sequence[Token], columns: Sequence[str]) -> list[Row]:
    """Read rows until the legend, or until a name comes again: then another matrix begins."""
    rows: list[Row] = []
    known, seen = set(columns), set[str]()
    index = 0
    while index < len(tokens) and tokens[index].text not in END_WORDS:
        label = tokens[index]
        index += 1
        if label.text not in known or not _starts_row(tokens, index - 1):
            continue
        if label.text in seen:
            break
        seen.add(label.text)
        row = Row(label, [], [])
        while index < len(tokens) and tokens[index].kind == "code":
            row.codes.append(tokens[index])
            index += 1
        while index < len(tokens) and tokens[index].kind == "value":
            row.values.append(tokens[index])
            index += 1
        rows.append(row)
    return rows


def place_cells(rows: Sequence[Row], header: Header) -> tuple[dict[tuple[str, str], str], list[str]]:
    """Return the code at each (row, column), and in words what could not be placed."""
    columns = [token.text for token in header.devices]
    position = {name: index for index, name in enumerate(columns)}
    cells: dict[tuple[str, str], str] = {}
    lost: list[str] = []
    for row in rows:
        own = position[row.label.text]
        placed = _place(row, header, own)
        if len(placed) < (len(columns) if row.values else min(len(row.codes), len(columns))):
            lost.append(f"cells are missing inside the row of {row.label.text}; what could not be placed was left out")
        cells |= {(row.label.text, columns[at]): code for at, code in placed.items()}
    return cells, lost


def _place(row: Row, header: Header, own: int) -> dict[int, str]:
    """Place a row's codes: in their order where that puts X on the diagonal, else by where they stand in the line.

    A row cut at its end is whole up to there. Where cells are missing inside, only those that are certain are placed.
    """
    width = len(header.devices)
    codes = [token.text for token in row.codes[:width]]
    diagonal = codes.index("X") if "X" in codes else None
    in_order = diagonal == own or (diagonal is None and len(codes) <= own)
    whole = len(codes) == width or not row.values
    if in_order and whole:
        return dict(enumerate(codes))
    by_column = _by_column(row, header)
    if by_column.get(own) == "X" and len(by_column) == len(codes):
        return by_column
    return dict(enumerate(codes[: own + 1])) if in_order else {}


def _by_column(row: Row, header: Header) -> dict[int, str]:
    """Place codes under the device whose title stands nearest, if header and row are one line each."""
    if len({token.line for token in header.devices}) > 1 or any(token.line != row.label.line for token in row.codes):
        return {}
    starts = [token.column for token in header.devices]
    return {min(range(len(starts)), key=lambda at: abs(starts[at] - code.column)): code.text for code in row.codes}


def links_of(cells: dict[tuple[str, str], str], columns: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
    """Return each pair of which a cell is there, once. Raises AdvisorError if both cells are there and differ."""
    links = []
    for a, b in combinations(columns, 2):
        there, back = cells.get((a, b)), cells.get((b, a))
        if there is not None and back is not None and there != back:
            raise AdvisorError(
                f"the matrix contradicts itself: row {a} says {there} for {b}, row {b} says {back} for {a}",
                "run `nvidia-smi topo -m` again and save it with: nvidia-smi topo -m > topo.txt",
            )
        code = there or back
        if code is not None and code != "X":
            links.append((a, b, code))
    return tuple(links)


def assign(row: Row, header: Header) -> dict[str, Token | None]:
    """Say which title each value of a row belongs to; None is a blank cell, a title left out was cut off.

    With fewer values than titles, those nearest to where the values stand are taken, the later one if it is a tie: an
    empty cell is printed without its padding. Across lines nothing stands where it was: then N/A closes the row.
    """
    titles, values = header.titles, row.values[: len(header.titles)]
    if not values:
        return {}
    one_line = len({t.line for t in titles}) == 1 and all(v.line == row.label.line for v in values)
    if len(values) == len(titles):
        chosen: Sequence[Token] = titles
    elif one_line:
        choices = list(combinations(titles, len(values)))
        chosen = min(
            reversed(choices), key=lambda c: sum(abs(t.column - v.column) for t, v in zip(c, values, strict=True))
        )
    else:
        chosen = titles[-len(values) :] if values[-1].text == "N/A" else titles[: len(values)]
    last = titles.index(chosen[-1])
    cells: dict[str, Token | None] = {title.text: None for title in titles[:last]}
    return cells | {title.text: value for title, value in zip(chosen, values, strict=True)}


def _starts_row(tokens: Sequence[Token], index: int) -> bool:
    if tokens[index].kind != "device" or index + 1 == len(tokens):
        return False
    return tokens[index + 1].kind == "code"


def _numbers(cell: Token | None) -> tuple[int, ...]:
    """Expand a list such as 0-3,8; blank and N/A are empty."""
    if cell is None or cell.text == "N/A":
        return ()
    numbers: list[int] = []
    for part in cell.text.replace(" ", "").strip(",").split(","):
        first, _, last = part.partition("-")
        if len(numbers) > MOST_CPUS:
            break
        numbers += range(int(first), min(int(last or first), int(first) + MOST_CPUS) + 1)
    return tuple(numbers[:MOST_CPUS])


def _numa(cell: Token | None) -> Numa:
    numbers = _numbers(cell)
    if not numbers:
        return None
    return numbers if cell is not None and re.search("[-,]", cell.text) else numbers[0]

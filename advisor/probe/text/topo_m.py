"""Read what `nvidia-smi topo -m` prints, however it was pasted."""

import re
from collections.abc import Sequence
from itertools import combinations

from msgspec import field

from advisor.probe.text.paste import Token, clean, tokens_of
from advisor.probe.text.refusal import refusal
from advisor.probe.text.topo_m_rows import (
    CPU,
    GPU_NUMA,
    NUMA,
    Cells,
    Header,
    Row,
    assign,
    find_matrices,
    place_cells,
    title_of,
)
from advisor.rules.errors import AdvisorError
from advisor.rules.links import kind_of_code
from advisor.rules.machine import Gpu, Link, Machine, Nic, Software, Unknown, Value

Numa = int | tuple[int, ...] | None
MOST_CPUS = 16384  # a longer list is no list of CPUs
_GPU = re.compile(r"GPU\d")
_NIC_LEGEND = re.compile(r"\b(NIC\d+):\s+([A-Za-z]\S*)")
_GPU_LIST = re.compile(r"\bGPU (\d+): ([^\n(]*[^\s(])(?: +\(UUID: ([^)\n]*)\))?")  # as `nvidia-smi -L` prints it
_DRIVER = re.compile(r"\bdriver(?:[ _]version)?\s*[:=]?\s*(\d{3}\.\d+(?:\.\d+)?)", re.IGNORECASE)


class TopoMatrix(Value, frozen=True, kw_only=True):
    """A link matrix as printed. A device whose row the paste has lost has no entry; None: there is no such column."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    links: tuple[tuple[str, str, str], ...]  # (a, b, code), a before b in the order of the columns
    cpu_affinity: dict[str, tuple[int, ...]] | None = None  # () is a blank cell
    numa: dict[str, Numa] | None = None
    gpu_numa_id: dict[str, int | None] | None = None
    nic_names: dict[str, str] = field(default_factory=dict)
    gpu_names: dict[str, str] = field(default_factory=dict)  # where the text lists the GPUs as well
    driver: str | None = None
    lost: tuple[str, ...] = ()  # what could not be placed, in words
    others: int = 0  # matrices behind this one


def machine_from_topo_m(text: str, source: str) -> Machine:
    """Build a Machine from the text of a link matrix. Raises AdvisorError where there is none."""
    return _machine(parse_topo_m(text), source)


def read_topo_m(text: str, source: str) -> Machine | None:
    """Build a Machine from the first link matrix in a text, if it holds one.

    Raises AdvisorError where two cells of one pair contradict each other.
    """
    matrix = _find_topo_m(text)
    return None if matrix is None else _machine(matrix, source)


def _machine(matrix: TopoMatrix, source: str) -> Machine:
    affinity, numa, own_numa = matrix.cpu_affinity or {}, matrix.numa or {}, matrix.gpu_numa_id or {}
    gpus = tuple(
        Gpu(
            id=gpu,
            index=int(gpu.removeprefix("GPU")),
            name=matrix.gpu_names.get(gpu),
            numa=numa.get(gpu),
            cpu_affinity=affinity.get(gpu),
            gpu_numa_id=own_numa.get(gpu),
        )
        for gpu in matrix.gpus
    )
    links = (Link(a=a, b=b, code=code, kind=kind) for a, b, code in matrix.links if (kind := kind_of_code(code)))
    return Machine(
        gpus=gpus,
        nics=tuple(Nic(id=nic, name=matrix.nic_names.get(nic)) for nic in matrix.nics),
        links=tuple(links),
        software=Software(driver=matrix.driver),
        unknown=tuple(Unknown(what="links", why=words) for words in _gaps(matrix)),
        source=source,
    )


def _gaps(matrix: TopoMatrix) -> list[str]:
    """Say what the links of a matrix leave open."""
    gaps = list(matrix.lost)
    devices = len(matrix.gpus) + len(matrix.nics)
    if missing := devices * (devices - 1) // 2 - len(matrix.links):
        gaps.append(f"the text lost the cells of {missing} pairs of devices")
    for a, b, code in matrix.links:
        if kind_of_code(code) is None:
            gaps.append(f"the code {code} between {a} and {b} is not known")
    if matrix.others:
        gaps.append(f"the text holds {matrix.others + 1} matrices; the first was taken")
    return gaps


def parse_topo_m(text: str) -> TopoMatrix:
    """Read the first link matrix in a text.

    Raises AdvisorError where there is no matrix, and where two cells of one pair contradict each other.
    """
    matrix = _find_topo_m(text)
    if matrix is None:
        raise refusal(text)
    return matrix


def _find_topo_m(text: str) -> TopoMatrix | None:
    if not _GPU.search(text):
        return None
    lines = clean(text)
    tokens = tokens_of(lines)
    ragged = text[-1:] not in ("\n", "\r")  # the end of the last line may be lost
    if ragged and tokens and re.fullmatch(r"NV\d", tokens[-1].text):
        tokens.pop()
    matrices = list(find_matrices(tokens))
    if not matrices:
        return None
    header, rows = matrices[0]
    columns = [token.text for token in header.devices]
    columns += [row.label.text for row in rows if row.label.text not in columns]  # of which the header was cut
    cells, lost = place_cells(rows, header, columns)
    names = [name for name in columns if name[0].isalpha()]  # without columns that were left out, "..."
    gpus = [name for name in names if name.startswith("GPU")]
    values = {
        row.label.text: _values(row, header, ragged=ragged and tokens[-1] in (*row.codes, *row.values)) for row in rows
    }
    shown = {title_of(title) for title in header.titles}

    def column(title: str) -> dict[str, Token | None] | None:
        return {gpu: values[gpu][title] for gpu in gpus if title in values.get(gpu, {})} if title in shown else None

    cpus, numas, own = column(CPU), column(NUMA), column(GPU_NUMA)
    whole = "\n".join(lines)
    driver = _DRIVER.search(whole)
    return TopoMatrix(
        gpus=tuple(gpus),
        nics=tuple(name for name in names if name not in gpus),
        links=links_of(cells, names),
        cpu_affinity=None if cpus is None else {gpu: _numbers(cell) for gpu, cell in cpus.items()},
        numa=None if numas is None else {gpu: _numa(cell) for gpu, cell in numas.items()},
        gpu_numa_id=None if own is None else {gpu: next(iter(_numbers(cell)), None) for gpu, cell in own.items()},
        nic_names={nic: name for nic, name in _NIC_LEGEND.findall(whole) if nic in names},
        gpu_names={f"GPU{number}": name for number, name, _ in _GPU_LIST.findall(whole) if f"GPU{number}" in gpus},
        driver=driver[1] if driver else None,
        lost=tuple(lost),
        others=len(matrices) - 1,
    )


def links_of(cells: Cells, columns: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
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


def _values(row: Row, header: Header, *, ragged: bool) -> dict[str, Token | None]:
    """Return a row's values by title, without one that the end of the text may have cut.

    A row that ends behind its codes has a blank cell if there is one title; more than one are never all blank.
    """
    if row.values:
        cut = ragged and len(row.values) < len(header.titles) and row.values[-1].text != "N/A"
        return assign(row._replace(values=row.values[:-1]) if cut else row, header)
    whole = len(row.codes) >= len(header.devices) and not ragged
    return {title_of(title): None for title in header.titles} if whole and len(header.titles) == 1 else {}


def _numbers(cell: Token | None) -> tuple[int, ...]:
    """Expand a list such as 0-3,8; blank and N/A are empty."""
    if cell is None or cell.text == "N/A":
        return ()
    numbers: list[int] = []
    for part in cell.text.replace(" ", "").strip(",-").split(","):
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

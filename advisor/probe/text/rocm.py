"""Read what `rocm-smi --showtopo` prints of AMD GPUs: weights, hops, link types and NUMA nodes."""

import re
from collections.abc import Iterable

from advisor.probe.text.paste import plain
from advisor.probe.text.square import MOST_GPUS, Square, find_squares, layout
from advisor.rules.errors import AdvisorError
from advisor.rules.links import kind_of_code
from advisor.rules.machine import Distance, Gpu, Link, Machine, Unknown

UNTOLD = "XXXX"  # a type of link that the driver does not tell, as between partitions of other packages
AGAIN = "run it again and save it with: rocm-smi --showtopo > topo.txt"

_MATRIX = layout(
    r"\b[A-Z]\w{2,12}(?:[ ][a-z]\w{2,12}|[ ]Type)?[ ]between[ ]two[ ]GPUs", r"\d+|XXXX?|[A-Z]{4,6}|None|N/A", "0"
)
_NUMA = re.compile(r"\bGPU ?\[?(\d{1,4})\]?\s{0,20}:\s{0,4}\(Topology\) Numa (Node|Affinity):\s{0,4}(-?\d{1,4})\b")
_NAME = re.compile(r"\bGPU ?\[(\d{1,4})\]\s{0,20}:\s{0,4}Card [Ss]eries:\s{0,20}([^\n]{1,99})")
_MARK = re.compile(r" between two GPUs|\(Topology\)|XGMI|PCIE")
_KNOWN_TYPE = re.compile("XGMI|PCIE|XXXX")

Pairs = dict[tuple[str, str], str]  # in the order of the columns


def read_rocm_topology(text: str, source: str) -> Machine | None:
    """Build a machine of what is left of the sections, in any order; None where there is none.

    Raises AdvisorError where two cells of one pair contradict each other.
    """
    if not _MARK.search(text):
        return None
    text = plain(text)
    sections: dict[str, Pairs] = {}
    ids: set[str] = set()
    gaps: list[str] = []
    for square in find_squares(text, _MATRIX):
        section = _section(square)
        if section is None or section in sections:
            continue
        sections[section] = _pairs(square)
        ids.update(square.gpus)
        gaps += [f"cells are missing inside the row of {gpu} of the {section}" for gpu in square.lost]
    numa = {(f"GPU{int(gpu)}", what): int(node) for gpu, what, node in _NUMA.findall(text) if int(gpu) < MOST_GPUS}
    ids.update(gpu for gpu, _ in numa)
    if not ids:
        return None
    names = {f"GPU{int(gpu)}": name.strip() for gpu, name in _NAME.findall(text)}
    types = sections.get("link types", {})
    if untold := sum(kind_of_code(code) is None for code in types.values()):
        gaps.append(f"rocm-smi does not tell the type of link of {untold} pairs of GPUs ({UNTOLD})")
    return Machine(
        gpus=tuple(
            Gpu(
                id=gpu,
                index=int(gpu.removeprefix("GPU")),
                name=names.get(gpu),
                numa=_node(numa.get((gpu, "Node"))),
                numa_affinity=_node(numa.get((gpu, "Affinity"))),
            )
            for gpu in sorted(ids, key=lambda gpu: int(gpu.removeprefix("GPU")))
        ),
        links=tuple(Link(a=a, b=b, code=code, kind=k) for (a, b), code in types.items() if (k := kind_of_code(code))),
        distances=_distances(sections),
        unknown=tuple(Unknown(what="links", why=why) for why in gaps),
        source=source,
    )


def _section(square: Square) -> str | None:
    """Name what a matrix holds, by its title, and by its cells where an error took the title's place."""
    cells = square.cells.values()
    if any(_KNOWN_TYPE.fullmatch(cell) for cell in cells):
        return "link types"
    if any(cell.isdigit() for cell in cells):
        return {"Weight": "weights", "Hops": "hops"}.get(square.title.partition(" ")[0])
    return None


def _pairs(square: Square) -> Pairs:
    """Join the two cells of each pair."""
    pairs: Pairs = {}
    place = {gpu: number for number, gpu in enumerate(square.gpus)}
    for (row, column), cell in square.cells.items():
        if cell in ("None", "N/A", "XXX"):
            continue
        a, b = sorted((row, column), key=place.__getitem__)
        if pairs.setdefault((a, b), cell) != cell:
            raise AdvisorError(
                f"the matrix contradicts itself: {pairs[a, b]} and {cell} stand between {a} and {b}", AGAIN
            )
    return pairs


def _distances(sections: dict[str, Pairs]) -> tuple[Distance, ...]:
    weights, hops, types = (sections.get(name, {}) for name in ("weights", "hops", "link types"))
    return tuple(
        Distance(
            a=a, b=b, weight=_number(weights.get((a, b))), hops=_number(hops.get((a, b))), link_type=types.get((a, b))
        )
        for a, b in _all_pairs(sections.values())
    )


def _all_pairs(sections: Iterable[Pairs]) -> list[tuple[str, str]]:
    return list(dict.fromkeys(pair for pairs in sections for pair in pairs))


def _number(cell: str | None) -> int | None:
    return int(cell) if cell is not None and cell.isdigit() and len(cell) < 10 else None


def _node(number: int | None) -> int | None:
    """Leave out -1, which means that the system has no NUMA nodes."""
    return number if number is not None and number >= 0 else None

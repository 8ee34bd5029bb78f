"""The links of a machine as a matrix, each code in the colour of its kind, with a legend in words."""

from collections.abc import Container, Iterable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from advisor.report.layout import Column, Grid, Row
from advisor.rules.format import UNKNOWN, bandwidth_range, folded, ids, plural
from advisor.rules.machine import Link, LinkKind, Machine

STYLES: dict[LinkKind, str] = {  # the nearest first
    "nvlink": "green",
    "xgmi": "green",
    "c2c": "green",
    "pcie-switch": "cyan",
    "pcie-switches": "cyan",
    "host-bridge": "yellow",
    "numa-node": "yellow",
    "inter-socket": "red",
    "host-memory": "yellow",
    "network": "magenta",
}
WORDS: dict[LinkKind, str] = {
    "nvlink": "NVLink",
    "xgmi": "AMD Infinity Fabric",
    "c2c": "chip to chip",
    "pcie-switch": "PCIe, through one switch",
    "pcie-switches": "PCIe, through several switches",
    "host-bridge": "PCIe, through a host bridge (the CPU)",
    "numa-node": "PCIe, between host bridges of one NUMA node",
    "inter-socket": "PCIe, across the link between NUMA nodes",
    "host-memory": "host memory",
    "network": "network between hosts",
}


class Matrix:
    """GPUs against GPUs and NICs where the width allows, else against GPUs alone, in blocks of columns if need be.

    A lone GPU gets its nearest NICs instead.
    """

    def __init__(self, machine: Machine) -> None:
        pairs = {(link.a, link.b): link for link in machine.links}
        self.links = pairs | {(b, a): link for (a, b), link in pairs.items()}
        self.gpus = [gpu.id for gpu in machine.gpus]
        self.nics = [nic.id for nic in machine.nics if any((gpu, nic.id) in self.links for gpu in self.gpus)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        alone = len(self.gpus) < 2
        together = not alone and self._width(self.gpus + self.nics) <= options.max_width
        for columns in self._blocks([] if alone else self.gpus + self.nics * together, options.max_width):
            yield from self._block(columns)
            yield Text()
        if self.nics and alone:
            yield Grid([Column("GPUs"), Column("nearest NICs", folds=True), Column("link")], self._nearest_rows())
            yield Text()
        shown = self.gpus + self.nics if together else self.gpus
        nearest = [] if together else [link for gpu in self.gpus for link in self._nearest(gpu)]
        yield legend([*(self.links[pair] for pair in self._pairs(shown)), *nearest], set(self.gpus))

    def _pairs(self, columns: Sequence[str]) -> Iterator[tuple[str, str]]:
        return ((gpu, column) for gpu in self.gpus for column in columns if (gpu, column) in self.links)

    def _blocks(self, columns: Sequence[str], available: int) -> Iterator[Sequence[str]]:
        while columns:
            size = len(columns)
            while size > 1 and self._width(columns[:size]) > available:
                size -= 1
            yield columns[:size]
            columns = columns[size:]

    def _width(self, columns: Sequence[str]) -> int:
        return max(map(len, self.gpus)) + sum(1 + self._column_width(column) for column in columns)

    def _column_width(self, column: str) -> int:
        return max([len(column), *(len(self.links[pair].code) for pair in self._pairs([column]))])

    def _block(self, columns: Sequence[str]) -> Iterator[Text]:
        first = max(map(len, self.gpus))
        widths = {column: self._column_width(column) for column in columns}
        titles = " ".join([" " * first, *(f"{column:<{widths[column]}}" for column in columns)])
        yield Text(titles, style="dim", no_wrap=True, overflow="ignore")
        for gpu in self.gpus:
            line = Text(f"{gpu:<{first}}", no_wrap=True, overflow="ignore")
            for column in columns:
                code, style = self._cell(gpu, column)
                line.append(" ").append(f"{code:<{widths[column]}}", style)
            yield line

    def _cell(self, row: str, column: str) -> tuple[str, str]:
        if row == column:
            return "X", "dim"
        link = self.links.get((row, column))
        return (link.code, STYLES[link.kind]) if link else (UNKNOWN, "dim")

    def _nearest_rows(self) -> Iterator[Row]:
        for gpu, same in folded(
            self.gpus, lambda gpu: tuple((self._far_end(x, gpu), x.code) for x in self._nearest(gpu))
        ):
            links = self._nearest(gpu)
            nics = ids([self._far_end(link, gpu) for link in links]) or UNKNOWN
            code = Text(links[0].code, style=STYLES[links[0].kind]) if links else Text(UNKNOWN, style="dim")
            yield Row((ids(same), nics, code))

    def _nearest(self, gpu: str) -> list[Link]:
        links = [self.links[gpu, nic] for nic in self.nics if (gpu, nic) in self.links]
        best = min((nearness(link.kind) for link in links), default=0)
        return [link for link in links if nearness(link.kind) == best]

    def _far_end(self, link: Link, gpu: str) -> str:
        return link.b if link.a == gpu else link.a


def legend(links: Iterable[Link], gpus: Container[str]) -> Grid:
    """Explain the codes that occur, the nearest first, with what one pair of GPUs can move."""
    found = sorted(folded(links, lambda link: (link.code, link.kind)), key=lambda entry: _order(entry[0]))
    rows = [
        Row((Text(code.code, style=STYLES[code.kind]), code_in_words(code.code, code.kind), _speed(same, gpus)))
        for code, same in found
    ]
    return Grid(
        [Column(""), Column("link", folds=True), Column("one direction, one pair", folds=True)], rows
    ).without_empty("")


def code_in_words(code: str, kind: LinkKind) -> str:
    """Say what a code means: NV18 is `18 NVLinks`."""
    return plural(lanes(code), "NVLink") if lanes(code) else WORDS[kind]


def lanes(code: str) -> int:
    """Read the number of NVLinks from a code: 18 from NV18, 0 from any other."""
    number = code.removeprefix("NV")
    return int(number) if number != code and number.isdecimal() else 0


def nearness(kind: LinkKind) -> int:
    """Rank a kind of link: the nearer two devices are, the smaller."""
    return list(STYLES).index(kind)


def _order(link: Link) -> tuple[int, int]:
    return nearness(link.kind), -lanes(link.code)


def _speed(links: Iterable[Link], gpus: Container[str]) -> str:
    pairs = [link for link in links if link.a in gpus and link.b in gpus]
    speeds = sorted(link.bandwidth for link in pairs if link.bandwidth is not None)
    if not speeds:
        return ""
    sources = sorted({link.bandwidth_source for link in pairs if link.bandwidth_source})
    return bandwidth_range(speeds[0], speeds[-1]) + (f" ({', '.join(sources)})" if sources else "")

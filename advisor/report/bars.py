"""A sum as horizontal bars: each part starts where the one before it ended, a line marks the limit."""

from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from advisor.report.layout import GAP

BLOCK, LIMIT = "█", "│"
WIDEST = 60


class Bars:
    """Parts, their total and, where there is one, the limit that the total must stay under."""

    def __init__(
        self,
        parts: Sequence[tuple[str, float]],
        total: float,
        numbers: Callable[[Sequence[float]], list[str]],
        limit: tuple[str, float] | None = None,
    ) -> None:
        rest = total - sum(size for _, size in parts)
        other = [("other", rest)] if rest > 0.005 * total else []
        self.parts = [(name, size) for name, size in [*parts, *other] if size > 0]
        self.total, self.limit = total, limit
        self.numbers = numbers([*(size for _, size in self.parts), total, *([limit[1]] if limit else [])])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = [*(name for name, _ in self.parts), "total", *([self.limit[0]] if self.limit else [])]
        first, second = max(map(len, names)), max(map(len, self.numbers))
        scale = min(WIDEST, options.max_width - first - second - 2 * GAP - 1) / max(self.total, self._limit(), 1e-12)
        marker = round(self._limit() * scale)
        style = "red" if self.limit and self.total > self.limit[1] else "green"
        start, spans = 0.0, []
        for _, size in self.parts:
            spans.append((round(start * scale), max(round((start + size) * scale), round(start * scale) + 1), "cyan"))
            start += size
        spans.append((0, max(round(self.total * scale), 1), style))
        spans += [(0, 0, "")] * (self.limit is not None)
        for name, number, span in zip(names, self.numbers, spans, strict=True):
            line = Text(no_wrap=True, overflow="ignore")
            line.append(f"{name:<{first}}", "dim").append(f"{'':{GAP}}{number:>{second}}{'':{GAP}}")
            yield line.append_text(self._bar(*span, marker))

    def _limit(self) -> float:
        return self.limit[1] if self.limit else 0.0

    def _bar(self, start: int, end: int, style: str, marker: int) -> Text:
        bar = Text()
        for cell in range(max(end, marker + 1 if self.limit else 0)):
            if start <= cell < end:
                bar.append(BLOCK, style)
            else:
                bar.append(LIMIT if self.limit and cell == marker else " ", "bold")
        return bar

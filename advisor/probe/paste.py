"""Take a pasted terminal text apart: escape codes, wraps, quotes and prefixes off, tokens with their places out."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[\d{1,2}(?:;\d{1,2})*m")  # the second has lost its ESC
_ODD = str.maketrans(
    {"\xa0": " ", "\u202f": " ", "\u2007": " ", "\u2010": "-", "\u2011": "-", "\u2013": "-"}
    | dict.fromkeys("|\u2502`", " ")
    | {"\ufeff": None, "\u200b": None}
)
_CODES = r"NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC|X"
_NUMBER = r"\d{1,6}(?:-\d{1,6})?"
_TITLES = {title.replace(" ", ""): title for title in ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")}
_TITLE = "|".join(r"\s+".join(r"\n?".join(word) for word in title.split()) for title in _TITLES.values())  # or broken
_TOKEN = re.compile(
    rf"""(?P<title>{_TITLE})
    |(?P<code>(?:{_CODES})(?=[\s\d,]|$|NV\d|PIX|PXB|PHB|NODE|SYS|SOC|X(?![A-Za-z])|N/A)(?!\s*=))
    |(?P<device>(?:GPU|NIC)\d{{1,4}}(?![-.\d]|\s*:)
        |mlx\d_\d+(?=mlx\d_)
        |(?=[a-z0-9_]{{0,31}}\d)[a-z][a-z0-9_]{{0,31}}(?![-\w.:/@=]))
    |(?P<value>N/A|{_NUMBER}(?:,\x20?{_NUMBER})*(?=[\s,]|$))
    |(?P<other>[A-Za-z_]\w*|[^\s\w]+|\S)""",
    re.VERBOSE,
)
_ROW = re.compile(rf"(?:(?:GPU|NIC)\d+|[a-z]\w*\d)\s+(?:{_CODES})(?![A-Za-z])")
_NARROWEST_WRAP = 40  # columns
_FIRST_ROW = re.compile(r"\bGPU\d{1,4}\s+(?:X|NV\d|PIX|PXB|PHB|NODE|SYS|SOC)\b")
_BEFORE, _AFTER = 20_000, 100_000  # characters kept around the first row of a long log; 8 GPUs and 40 NICs take 20 000

Kind = Literal["title", "device", "code", "value", "other"]


class Token(NamedTuple):
    kind: Kind
    text: str
    line: int
    column: int  # with tabs expanded to 8


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a text in order, without what stands before the first device name of a line."""
    tokens: list[Token] = []
    for _, line in groupby(_scan(clean(text)), key=lambda token: token.line):
        tokens += _from_first_device(list(line))
    return tokens


def clean(text: str) -> list[str]:
    """Return the lines without escape codes, ruled lines and hard wraps; tabs become columns.

    Of a long text only what lies around its first row is kept.
    """
    if len(text) > _BEFORE + _AFTER:
        row = _FIRST_ROW.search(text)
        start = max(0, row.start() - _BEFORE) if row else 0
        text = text[start : start + _BEFORE + _AFTER]
    plain = _ESCAPE.sub("", text.translate(_ODD))
    lines = [line.expandtabs(8) for line in plain.splitlines() if not _is_ruled(line)]
    return unwrap(lines)


def _is_ruled(line: str) -> bool:
    """Say whether a line is drawn between header and rows, such as |---|:--:|, =====."""
    return ("-" in line or "=" in line) and not line.strip("-=+: \t")


def unwrap(lines: Sequence[str]) -> list[str]:
    """Join lines that a terminal broke at its width: full ones, where the next holds no start of a row.

    The width is the length of the longest line; it counts as one if several lines are just as long.
    """
    width = max(map(len, lines), default=0)
    if width < _NARROWEST_WRAP or sum(len(line) == width for line in lines) < 2:
        return list(lines)
    joined: list[str] = []
    broken = False
    for line in lines:
        if broken and line.strip() and not _ROW.search(line):
            joined[-1] += line
        else:
            joined.append(line)
        broken = len(line) == width
    return joined


def _scan(lines: Sequence[str]) -> Iterator[Token]:
    starts, at = [], 0
    for line in lines:
        starts.append(at)
        at += len(line) + 1
    for match in _TOKEN.finditer("\n".join(lines)):
        number = bisect_right(starts, match.start()) - 1
        kind: Kind = match.lastgroup  # type: ignore[assignment]
        text = _TITLES["".join(match.group().split())] if kind == "title" else match.group()
        yield Token(kind, text, number, match.start() - starts[number])


def _from_first_device(line: Sequence[Token]) -> Sequence[Token]:
    """Drop prompts, quotes, times and log prefixes; a line without a device name continues another and stays whole."""
    first = next((index for index, token in enumerate(line) if token.kind == "device"), 0)
    return line[first:]

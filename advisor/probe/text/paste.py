"""Take a pasted terminal text apart: escape codes, wraps, quotes and prefixes off, tokens with their places out."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Literal, NamedTuple

_ESCAPE = re.compile(r"(?:\x1b\n?|\^\[)\[[0-9;?]*[A-Za-z]|\[\d{1,2}(?:;\d{1,2})*m")  # the last has lost its ESC
_ODD = str.maketrans(
    dict.fromkeys("\xa0\u2002\u2003\u2007\u2009\u202f\u3000|\u2502`", " ")
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-")
    | dict.fromkeys(["\ufeff", "\u200b", "\u200c", "\u200d", "\u2060", "\x00", "\x1b"])
)
_CODES = r"NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|SOC|C2C|X"
_CODE = rf"(?:{_CODES})(?=[\s\d,]|$|NV\d|PIX|PXB|PHB|NODE|SYS|SOC|X(?![A-Za-z])|N/A)"
_NUMBER = r"\d{1,6}(?:-\d{1,6})?"
_TITLES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")


def _beginning(title: str) -> str:
    """Make the pattern of a title that may be cut after any of its letters."""
    pattern = ""
    for letter in reversed(title):
        pattern = f"(?:{letter if letter != ' ' else r'[ ]+'}{pattern})?"
    return pattern.removeprefix("(?:").removesuffix(")?")


_TOKEN = re.compile(
    rf"""(?P<title>CPU\s+Affinity|NUMA\s+Affinity|GPU\s+NUMA\s+ID
        |(?<!\S)(?:{"|".join(map(_beginning, _TITLES))}|NIC?|mlx\d?_?)(?=[ ]*$))
    |(?P<code>{_CODE}(?!\s*=))
    |(?P<device>(?:GPU|NIC)\d{{1,4}}(?![-.\d]|\s*:)
        |mlx\d_\d+(?=mlx\d_)
        |(?=[a-z0-9_]{{0,31}}\d)[a-z][a-z0-9_]{{0,31}}(?<!_)(?![-\w.:/@=]))
    |(?P<value>N/A|{_NUMBER}(?:,\x20?{_NUMBER})*[,-]?(?=\s|$|N/A|\.\.|\u2026))
    |(?P<gap>\.\.+|\u2026)
    |(?P<other>[A-Za-z_]\w*|[^\s\w]+?(?=[\s\w\u2026]|\.\.|$)|\S)""",
    re.VERBOSE | re.MULTILINE,
)
# A word that stands in matrices only, parts of it glued together or not.
_WORD = re.compile(
    rf"(?>{_CODE}|(?:GPU|NIC)\d{{1,4}}|mlx\d_(?:bond_)?\d+|CPU|NUMA|GPU|Affinity|ID|N/A|{_NUMBER}(?:,{_NUMBER})*[,-]?)++"
)
_ROW = re.compile(rf"(?<!\w)(?:(?:GPU|NIC)\d{{1,4}}|[a-z]\w{{0,31}}\d)\s+(?:{_CODES})(?![A-Za-z])")
_NAME_AT_END = re.compile(r"(?:GPU|NIC|_)\d+$")
_LITERAL = re.compile(r"\\[nt] *GPU\d")  # the text is one string of JSON or of Python
_FIRST_ROW = re.compile(r"\bGPU\d{1,4}\s+(?:X|NV\d|PIX|PXB|PHB|NODE|SYS|SOC)\b")
_BEFORE, _AFTER = 20_000, 100_000  # characters kept around the first row of a long log; 8 GPUs and 40 NICs take 20 000
_LONGEST_PREFIX, _LONGEST_WORD = 200, 400  # characters

Kind = Literal["title", "device", "code", "value", "gap", "other"]


class Token(NamedTuple):
    kind: Kind
    text: str  # of a title that stands on two lines or is padded: with single spaces
    line: int
    column: int  # with tabs expanded to 8


def tokens_of(lines: Sequence[str]) -> list[Token]:
    """Return the tokens of cleaned lines in order, without prompts and the like before a line's first device name."""
    tokens: list[Token] = []
    for _, line in groupby(_scan(lines), key=lambda token: token.line):
        tokens += _from_first_device(list(line))
    return tokens


def clean(text: str) -> list[str]:
    """Return the lines without escape codes, prefixes, ruled lines and hard wraps; tabs become columns.

    Of a long text only what lies around its first row is kept.
    """
    text = _without_literals(text)
    if len(text) > _BEFORE + _AFTER:
        row = _FIRST_ROW.search(text)
        start = max(0, row.start() - _BEFORE) if row else 0
        text = text[start : start + _BEFORE + _AFTER]
    lines = [line.expandtabs(8) for line in without_prefix(_plain(text).splitlines()) if not _is_ruled(line)]
    return unwrap(lines)


def plain(text: str) -> str:
    """Return the whole text without escape codes and signs that are not seen; bars and backticks become spaces."""
    return _plain(_without_literals(text))


def _without_literals(text: str) -> str:
    if not _LITERAL.search(text):
        return text
    for sign, meant in (("\\u001b", ""), ("\\r", ""), ("\\n", "\n"), ("\\t", "\t")):
        text = text.replace(sign, meant)
    return text


def _plain(text: str) -> str:
    return _ESCAPE.sub("", text).translate(_ODD)


def without_prefix(lines: Sequence[str]) -> list[str]:
    """Take off what stands before each line: the sign of a quote, a time, a line number, the name of a host or rank.

    It is what stands before the first row, with other digits, if it stands before the line above as well.
    """
    above = ""
    for line in lines:
        row = _ROW.search(line)
        if row is not None and (prefix := line[: row.start()]).strip():
            return _cut_off(prefix, above, lines)
        if row is not None:
            break
        above = line if line.strip() else above
    return list(lines)


def _cut_off(prefix: str, above: str, lines: Sequence[str]) -> list[str]:
    signs = prefix.strip()
    if len(prefix) > _LONGEST_PREFIX or re.search(rf"\b(?:{_CODES})\b|[GN](?:PU|IC)\d", prefix):
        return list(lines)  # cells of another row, in a text that lost its newlines
    spaces = len(prefix) - len(prefix.rstrip())
    shape = r"\s+".join(re.sub(r"\d+", r"\\d+", re.escape(part)) for part in signs.split())
    pattern = re.compile(rf"\s*{shape}[ \t]{{0,{spaces}}}")
    if not pattern.match(above):
        return list(lines)
    return [line[found.end() :] if (found := pattern.match(line)) else line for line in lines]


def _is_ruled(line: str) -> bool:
    """Say whether a line is drawn between header and rows, such as |---|:--:|, =====."""
    return ("-" in line or "=" in line) and not line.strip("-=+: \t")


def unwrap(lines: Sequence[str]) -> list[str]:
    """Join lines that were broken inside a word, as terminals do at their width.

    That a word was broken shows in two ways: only both parts together make a word of a matrix; or the parts do as well,
    but several lines that could go on break at the same greatest width.
    """
    seams = [_seam(line, after) for line, after in pairwise(lines)]
    widths = [len(line) for line, seam in zip(lines, seams, strict=False) if seam]
    width = max(widths, default=0)
    at_width = widths.count(width) > 1
    joined = list(lines[:1])
    for seam, (line, after) in zip(seams, pairwise(lines), strict=True):
        if seam == "broken" or (seam == "open" and at_width and len(line) == width):
            joined[-1] += after
        else:
            joined.append(after)
    return joined


def _seam(line: str, after: str) -> Literal["broken", "open"] | None:
    """Say whether a line goes on in the next: inside a word for certain, or maybe; None if it does not."""
    if not line.strip() or not after.strip() or _ROW.match(after.lstrip()):
        return None
    tail, head = line[-_LONGEST_WORD:].rsplit(maxsplit=1)[-1], after[:_LONGEST_WORD].split(maxsplit=1)[0]
    alone = _WORD.fullmatch(tail) and _WORD.fullmatch(head)
    if line[-1].isspace() or after[0].isspace():
        return "open" if alone else None
    if not _WORD.fullmatch(tail + head):
        return None
    number = head[0].isdigit()
    if not alone or (number and _NAME_AT_END.search(tail)):  # no cell that is a number follows a name
        return "broken"
    return "open" if number and tail[0].isalpha() else None


def _scan(lines: Sequence[str]) -> Iterator[Token]:
    starts, at = [], 0
    for line in lines:
        starts.append(at)
        at += len(line) + 1
    for match in _TOKEN.finditer("\n".join(lines)):
        number = bisect_right(starts, match.start()) - 1
        kind: Kind = match.lastgroup  # type: ignore[assignment]
        yield Token(kind, " ".join(match.group().split()), number, match.start() - starts[number])


def _from_first_device(line: Sequence[Token]) -> Sequence[Token]:
    """Drop what stands before the first device name; a line of cells alone, up to there, continues another row."""
    first = next((index for index, token in enumerate(line) if token.kind == "device"), 0)
    return line[first:] if any(token.kind == "other" for token in line[:first]) else line

"""Text that fits: how wide it will be, where it breaks, and short names. Sizes in pixels."""

import re
from collections.abc import Iterable

TITLE, LARGE, SMALL = 16.0, 13.0, 11.0  # font sizes
LEADING = 1.3  # distance of two lines, in font sizes
FONTS = "DejaVu Sans, Verdana, Liberation Sans, Noto Sans, Arial, Helvetica, Ubuntu, Roboto, FreeSans, sans-serif"
DOT = " · "  # between facts on one line

# Advance widths of DejaVu Sans and its bold, the widest of FONTS, in font sizes: the widest letter of each group.
_WIDTHS = {
    letter: widths
    for letters, widths in (
        ("'|ijlIJ", (0.34, 0.38)),
        (" ,./:;\\-fr()[]t!·", (0.42, 0.50)),
        ('"_sz?ckxvyLF*`', (0.60, 0.69)),
        ("abdeghnopquTPYES0123456789$K", (0.66, 0.78)),
        ("ABCDGHNOQRUVXZ", (0.79, 0.86)),
        ("#+<=>^~→w&", (0.84, 0.93)),
    )
    for letter in letters
}
_WIDEST = (1.0, 1.11)

_BREAK = re.compile(r"\s+(?![kMGTP]i?B\b)")  # not between a number and its unit
_BRAND = re.compile(r"\b(NVIDIA|AMD|Tesla|GeForce|Quadro|Instinct|Radeon|Graphics|Corporation)\b", re.IGNORECASE)
_MEMORY = re.compile(r"[\s-]*\b(\d+\s?GB|HBM\d\w?)\b", re.IGNORECASE)


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Estimate how wide a text becomes, never less than it will be."""
    return size * sum(_WIDTHS.get(letter, _WIDEST)[bold] for letter in text)


def shortened(text: str, size: float, room: float, *, bold: bool = False) -> str:
    """Cut a text so that it fits, with an ellipsis in its middle: the ends of names tell them apart."""
    if text_width(text, size, bold=bold) <= room:
        return text
    for kept in range(len(text) - 1, 0, -1):
        tail = kept // 2
        cut = text[: kept - tail].rstrip() + "…" + text[len(text) - tail :].lstrip()
        if text_width(cut, size, bold=bold) <= room:
            return cut
    return "…"


def wrapped(text: str, size: float, room: float, *, bold: bool = False) -> tuple[str, ...]:
    """Break a text into lines between words; a word wider than the room is shortened."""
    words = _BREAK.split(text.strip()) if text.strip() else []
    return _joined((shortened(word, size, room, bold=bold) for word in words), " ", size, room, bold)


def flowed(facts: Iterable[str], size: float, room: float, *, bold: bool = False) -> tuple[str, ...]:
    """Put facts beside each other with dots between, and on a new line where a fact does not fit."""
    lines = _joined((fact for fact in facts if fact), DOT, size, room, bold)
    return tuple(part for line in lines for part in wrapped(line, size, room, bold=bold))


def short_gpu_name(name: str) -> str:
    """Leave out the brand and the memory, which the box shows anyhow: `NVIDIA A100-SXM4-40GB` is `A100-SXM4`."""
    short = _MEMORY.sub("", _BRAND.sub("", name))
    return " ".join(short.split()).strip("- ") or name


def _joined(parts: Iterable[str], between: str, size: float, room: float, bold: bool) -> tuple[str, ...]:
    """Put as many parts on each line as fit, one at least."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}{between}{part}" if lines else part
        if lines and text_width(longer, size, bold=bold) <= room:
            lines[-1] = longer
        else:
            lines.append(part)
    return tuple(lines)

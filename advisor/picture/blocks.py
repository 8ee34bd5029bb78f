"""Boxes put together: side by side, below each other, in rows that wrap, inside a frame."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from advisor.picture.shapes import DEVICES, FRAMES, Box, BoxKind
from advisor.picture.words import DOT, LARGE, LEADING, SMALL, flowed
from advisor.rules.format import ids

GAP = 10.0  # between neighbours
ROW_GAP = 2 * GAP  # between rows of GPUs, where lines turn
PAD = 8.0  # between a box and what is inside


class Block(NamedTuple):
    """Boxes that move together; the first is the outermost where there is a frame."""

    width: float = 0.0
    height: float = 0.0
    boxes: tuple[Box, ...] = ()

    def moved(self, dx: float, dy: float) -> tuple[Box, ...]:
        return tuple(replace(box, x=box.x + dx, y=box.y + dy) for box in self.boxes)


def single(box: Box) -> Block:
    return Block(box.width, box.height, (box,))


def row(blocks: Iterable[Block]) -> Block:
    """Put blocks side by side; frames among them grow to the height of the highest."""
    found = [block for block in blocks if block.boxes]
    height = max((block.height for block in found), default=0.0)
    boxes: list[Box] = []
    x = 0.0
    for block in found:
        grown = _grown(block, height)
        boxes += grown.moved(x, 0.0)
        x += block.width + GAP
    return Block(max(0.0, x - GAP), height, tuple(boxes))


def column(blocks: Iterable[Block]) -> Block:
    """Put blocks below each other, each in the middle."""
    found = [block for block in blocks if block.boxes]
    width = max((block.width for block in found), default=0.0)
    boxes: list[Box] = []
    y = 0.0
    for block in found:
        boxes += block.moved((width - block.width) / 2, y)
        y += block.height + GAP
    return Block(width, max(0.0, y - GAP), tuple(boxes))


def rows(blocks: Sequence[Block], width: float) -> Block:
    """Put blocks side by side, in as many rows as the width asks for."""
    lines: list[list[Block]] = []
    used = 0.0
    for block in blocks:
        if lines and used + GAP + block.width <= width:
            lines[-1].append(block)
            used += GAP + block.width
        else:
            lines.append([block])
            used = block.width
    return column(row(line) for line in lines)


def grid(blocks: Sequence[Block], columns: int) -> Block:
    """Put blocks of one width in rows of so many, each below the one a row before."""
    lines = [row(blocks[i : i + columns]) for i in range(0, len(blocks), columns)]
    boxes: list[Box] = []
    y = 0.0
    for line in lines:
        boxes += line.moved(0.0, y)
        y += line.height + ROW_GAP
    return Block(max((line.width for line in lines), default=0.0), max(0.0, y - ROW_GAP), tuple(boxes))


def framed(
    kind: BoxKind, inside: Block, facts: Sequence[str], *, devices: tuple[str, ...], slowest: bool = False
) -> Block:
    """Put a frame around a block, with its label below what is inside."""
    lines = flowed(facts, SMALL, inside.width, bold=slowest)
    width, height = inside.width + 2 * PAD, inside.height + 2 * PAD + text_height(kind, len(lines))
    tooltip = f"{DOT.join(facts)}: {ids(devices)}"
    frame = Box(kind=kind, width=width, height=height, lines=lines, tooltip=tooltip, devices=devices, slowest=slowest)
    return Block(width, height, (frame, *inside.moved(PAD, PAD)))


def bar(
    kind: BoxKind,
    facts: Sequence[str],
    x: float,
    y: float,
    width: float,
    *,
    devices: tuple[str, ...] = (),
    slowest: bool = False,
) -> Box:
    """Make a bar that devices attach to, as high as its label needs."""
    lines = flowed(facts, SMALL, width - 2 * PAD, bold=True)
    return Box(
        kind=kind,
        x=x,
        y=y,
        width=width,
        height=text_height(kind, len(lines)) + PAD,
        lines=lines,
        tooltip=DOT.join(facts),
        devices=devices,
        slowest=slowest,
    )


def text_height(kind: BoxKind, lines: int) -> float:
    """Height of the lines of a box: the first line of a device is larger."""
    if lines == 0:
        return 0.0
    first = LARGE if kind in DEVICES else SMALL
    return LEADING * (first + (lines - 1) * SMALL)


def _grown(block: Block, height: float) -> Block:
    first, *others = block.boxes
    if first.kind not in FRAMES:
        return block
    return Block(block.width, height, (replace(first, height=height), *others))

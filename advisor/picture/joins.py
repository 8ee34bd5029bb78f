"""What joins GPUs directly, above them: NVSwitch and full meshes as one bar, other NVLinks as arcs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import comb
from typing import NamedTuple

from msgspec.structs import replace

from advisor.picture.blocks import GAP, bar
from advisor.picture.shapes import Box, Line, LineKind, Point
from advisor.picture.slowest import Mark
from advisor.picture.words import DOT, SMALL, text_width
from advisor.report.matrix import code_in_words
from advisor.rules.format import bandwidth, bandwidth_range
from advisor.rules.links import nvlink_count
from advisor.rules.machine import Link, Machine, Source
from advisor.rules.topology import has_nvswitch

KINDS: tuple[LineKind, ...] = ("nvlink", "xgmi", "c2c", "host-memory")
MESH = 5  # GPUs from which on a full mesh of equal links is a bar: 4 have 6 arcs, 8 would have 28
MOST_ARCS = 24  # of one group; more are a bar as well. The cube mesh of 8 GPUs has 16
FEW = 4  # arcs that have room for their bandwidth
RISE, SLOPE = 34.0, 0.24  # of an arc: its control points lie RISE + SLOPE x length above its ends
DROP = 22.0  # from a bar to the GPUs
LABEL = SMALL + 4.0  # height of a label
EDGE = 2.0  # of a marked arc
HIDDEN = 0.6  # of an arc: a label that is wider stands above it


class Joined(NamedTuple):
    """Bars and lines above GPUs whose tops are at 0 and below; they reach up to -height."""

    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    height: float


def joined(machine: Machine, gpus: Mapping[str, Box], mark: Mark) -> Joined:
    """Draw the direct links of GPUs that have their boxes already."""
    links = [link for link in machine.links if link.kind in KINDS and link.a in gpus and link.b in gpus]
    switched = has_nvswitch(machine)
    boxes: list[Box] = []
    lines: list[Line] = []
    arcs: list[Link] = []
    for group in _groups(links):
        members = [gpu for gpu in gpus if any(gpu in (link.a, link.b) for link in group)]
        through = switched and group[0].kind == "nvlink"
        if through or _is_full_mesh(group, members) or len(group) > MOST_ARCS:
            below = [gpus[gpu] for gpu in members]
            boxes.append(_bar(group, below, _free(boxes), mark, switched=through))
            lines += _drops(group, boxes[-1], below)
        else:
            arcs += group
    lines += _arcs(arcs, gpus, mark)
    tops = [box.y for box in boxes] + [line.label_at[1] - LABEL for line in lines if line.label]
    return Joined(tuple(boxes), tuple(lines), -min(tops, default=0.0))


def speed_in_words(links: Iterable[Link], silent: Source | None = None) -> str:
    """Say what one pair moves and who says so: `478 GB/s (data sheet)`; nothing where that is unknown.

    The source `silent` goes without saying.
    """
    known = [(link.bandwidth, link.bandwidth_source) for link in links if link.bandwidth is not None]
    if not known:
        return ""
    sources = sorted({source for _, source in known if source and source != silent})
    speeds = sorted(speed for speed, _ in known)
    return bandwidth_range(speeds[0], speeds[-1]) + (f" ({', '.join(sources)})" if sources else "")


def _groups(links: Sequence[Link]) -> Iterator[list[Link]]:
    """Yield the links of one kind that hang together."""
    left = list(links)
    while left:
        group, ends = [left.pop(0)], set[str]()
        while True:
            ends = {end for link in group for end in (link.a, link.b)}
            more = [link for link in left if link.kind == group[0].kind and ends & {link.a, link.b}]
            if not more:
                break
            group += more
            left = [link for link in left if link not in more]
        yield group


def _is_full_mesh(group: Sequence[Link], members: Sequence[str]) -> bool:
    pairs = {frozenset((link.a, link.b)) for link in group}
    alike = len({(link.code, link.bandwidth) for link in group}) == 1
    return len(members) >= MESH and alike and len(pairs) == comb(len(members), 2)


def _free(bars: Sequence[Box]) -> float:
    """Return where the lower edge of the next bar may lie: above all others."""
    return min((bar.y for bar in bars), default=0.0) - DROP


def _bar(group: Sequence[Link], gpus: Sequence[Box], bottom: float, mark: Mark, *, switched: bool) -> Box:
    left, right = min(box.x for box in gpus), max(box.right for box in gpus)
    codes = sorted({link.code for link in group}, key=nvlink_count, reverse=True)
    hit = mark.hits(group)
    every = comb(len(gpus), 2)
    if switched:
        name, each = "NVSwitch", f"{', '.join(codes)} to each GPU"
    elif len(group) == every:
        name, each = "full mesh", f"{', '.join(codes)} between every two GPUs"
    else:
        name, each = "mesh", f"{', '.join(codes)} between {len(group)} of {every} pairs"
    facts = [fact for fact in (name, each, speed_in_words(group), mark.words if hit else "") if fact]
    devices = tuple(device for box in gpus for device in box.devices)
    made = bar("fabric" if switched else "mesh", facts, left, 0.0, right - left, devices=devices, slowest=hit)
    return replace(made, y=bottom - made.height)


def _drops(group: Sequence[Link], fabric: Box, gpus: Sequence[Box]) -> Iterator[Line]:
    """Lead a line from a bar to each GPU: straight down, or past the left side of a GPU that is in between."""
    for box in gpus:
        side, turn = box.x - GAP / 2, box.y - GAP / 2
        below = any(other.y < box.y and other.x < box.middle < other.right for other in gpus)
        around = ((side, fabric.bottom), (side, turn), (box.middle, turn), (box.middle, box.y))
        own = [link for link in group if set(box.devices) & {link.a, link.b}]
        facts = (own[0].code, speed_in_words(own))
        yield Line(
            kind=_kind(own[0]),
            points=around if below else ((box.middle, fabric.bottom), (box.middle, box.y)),
            width=_width(1 if below else max(nvlink_count(link.code) for link in own)),
            ends=box.devices,
            tooltip=f"{box.devices[0]}: {DOT.join(fact for fact in facts if fact)}",
        )


def _arcs(links: Sequence[Link], gpus: Mapping[str, Box], mark: Mark) -> Iterator[Line]:
    ports = _ports(links, gpus)
    taken: list[tuple[float, float, float]] = []  # centre and width of the labels so far
    for link in sorted(links, key=lambda link: abs(gpus[link.a].x - gpus[link.b].x)):
        a, b = sorted((link.a, link.b), key=lambda gpu: gpus[gpu].x)
        curve = _curve(ports[a, b], ports[b, a])
        speed = speed_in_words([link])
        hit = mark.hits([link])
        label = f"{link.code}{DOT}{bandwidth(link.bandwidth)}" if link.bandwidth and len(links) <= FEW else link.code
        width = text_width(label, SMALL, bold=hit) + 6
        thick = _width(nvlink_count(link.code))
        top = _at(curve, 0.5)
        if width > HIDDEN * (curve[3][0] - curve[0][0]):
            at = (top[0], top[1] - thick / 2 - LABEL / 2 - EDGE)
        else:
            at = next((point for point in _along(curve) if not _overlaps(point, width, taken)), top)
        taken.append((*at, width))
        yield Line(
            kind=_kind(link),
            points=curve,
            width=thick,
            curved=True,
            label=label,
            label_at=at,
            tooltip=DOT.join(part for part in (f"{a} - {b}", code_in_words(link.code, link.kind), speed) if part),
            ends=(a, b),
            slowest=hit,
        )


def _ports(links: Sequence[Link], gpus: Mapping[str, Box]) -> dict[tuple[str, str], Point]:
    """Spread the arcs of a GPU over its top so that they don't cross there: near ones outside, far ones inside."""
    found: dict[tuple[str, str], Point] = {}
    for gpu, box in gpus.items():
        ends = [link.b if link.a == gpu else link.a for link in links if gpu in (link.a, link.b)]
        left = sorted((end for end in ends if gpus[end].x < box.x), key=lambda end: -gpus[end].x)
        right = sorted((end for end in ends if gpus[end].x > box.x), key=lambda end: -gpus[end].x)
        for i, end in enumerate([*left, *right]):
            found[gpu, end] = (box.x + box.width * (i + 1) / (len(ends) + 1), box.y)
    return found


def _curve(start: Point, end: Point) -> tuple[Point, ...]:
    rise = RISE + SLOPE * (end[0] - start[0])
    return start, (start[0], start[1] - rise), (end[0], end[1] - rise), end


def _along(curve: tuple[Point, ...]) -> Iterator[Point]:
    for step in (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8):
        yield _at(curve, step)


def _at(curve: tuple[Point, ...], t: float) -> Point:
    """Return the point of a cubic Bezier curve at t, 0 to 1."""
    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
    return sum(w * x for w, (x, _) in zip(weights, curve, strict=True)), sum(
        w * y for w, (_, y) in zip(weights, curve, strict=True)
    )


def _overlaps(at: Point, width: float, taken: Iterable[tuple[float, float, float]]) -> bool:
    return any(abs(at[1] - y) < LABEL and abs(at[0] - x) < (width + other) / 2 for x, y, other in taken)


def _width(count: int) -> float:
    """Width of a line for that many NVLinks, capped where more would hide its neighbours."""
    return min(1.0 + 0.9 * max(1, count), 8.0)


def _kind(link: Link) -> LineKind:
    return next(kind for kind in KINDS if kind == link.kind)

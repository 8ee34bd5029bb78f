"""Place everything that a picture of a machine shows: (Machine, Fabric) to a Picture. Pure; nothing is drawn here.

From top to bottom: the direct links of the GPUs; the GPUs, in frames for what they share; their NICs; the link between
sockets; the network between hosts; legend and caption.
"""

from collections.abc import Iterable, Sequence
from math import ceil
from typing import NamedTuple

from msgspec.structs import replace

from advisor.picture.blocks import GAP, PAD, Block, bar, column, framed, grid, row, rows, text_height
from advisor.picture.caption import caption_of, frame_label, host_label, keys_of, network_label, socket_label
from advisor.picture.devices import WIDTH, devices_of, gpu_block, nic_blocks
from advisor.picture.joins import joined
from advisor.picture.nesting import TREE_KINDS, Part, nested, sides, smallest
from advisor.picture.shapes import DEVICES, FRAMES, Box, Key, Line, LineKind, Picture
from advisor.picture.slowest import Mark, ring_mark
from advisor.picture.words import LEADING, SMALL, TITLE, flowed, text_width, wrapped
from advisor.rules.fabric import Fabric
from advisor.rules.graph import network_nics
from advisor.rules.machine import Gpu, Machine, Nic
from advisor.rules.pcie_tree import Tree, pcie_tree

MARGIN = 20.0
LEAST_WIDTH = 640.0  # of the host, so that title and caption have room
STUB = 16.0  # from a frame down to a bar
GPUS_IN_A_ROW = 16  # of one host
NICS_IN_A_ROW = 4  # where there are no GPUs above
COPIES = 3  # hosts that a fold of several shows
COPY_OFFSET = 5.0
SWATCH = 26.0  # width of a sample in the legend


class Drawing(NamedTuple):
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...] = ()

    def moved(self, dx: float, dy: float) -> "Drawing":
        boxes = tuple(replace(box, x=box.x + dx, y=box.y + dy) for box in self.boxes)
        lines = tuple(
            replace(
                line,
                points=tuple((x + dx, y + dy) for x, y in line.points),
                label_at=(line.label_at[0] + dx, line.label_at[1] + dy),
            )
            for line in self.lines
        )
        return Drawing(boxes, lines)


def layout(machine: Machine, fabric: Fabric, title: str) -> Picture:
    """Lay out the picture of a machine."""
    mark = ring_mark(machine, fabric)
    host = _host(machine, mark)
    width = host.boxes[0].width + 2 * MARGIN
    room = width - 2 * MARGIN
    heading = wrapped(title, TITLE, room, bold=True)
    hosts = _with_network(machine, host.moved(MARGIN, MARGIN + LEADING * TITLE * len(heading) + PAD))
    bottom = max(box.bottom for box in hosts.boxes) + MARGIN
    keys = _placed(keys_of(machine, hosts.boxes, hosts.lines, mark), bottom, room)
    caption = [line for words in caption_of(machine, fabric) for line in wrapped(words, SMALL, room)]
    caption_y = keys[-1].y + 2 * LEADING * SMALL if keys else bottom
    return Picture(
        width=width,
        height=caption_y + LEADING * SMALL * (len(caption) - 1) + MARGIN,
        title=heading,
        boxes=hosts.boxes,
        lines=hosts.lines,
        keys=keys,
        caption=tuple(caption),
        caption_y=caption_y,
    )


def _host(machine: Machine, mark: Mark) -> Drawing:
    """Draw one host at 0, 0: its frame, its label on top, then everything inside."""
    tree = pcie_tree(machine)
    part = nested(tree)
    content = _Content(machine, part, mark).block(part)
    gpus = sorted((box for box in content.boxes if box.kind == "gpu"), key=lambda box: box.x)
    above = joined(machine, {box.devices[0]: box for box in gpus}, mark)
    inside = Drawing((*content.boxes, *above.boxes), above.lines)
    sockets = _sockets(machine, tree, inside.boxes, content, mark)
    inside = Drawing((*inside.boxes, *sockets.boxes), (*inside.lines, *sockets.lines))
    bottom = max((box.bottom for box in sockets.boxes), default=content.height)
    width = max(content.width + 2 * PAD, LEAST_WIDTH)
    label = flowed(host_label(machine), SMALL, width - 2 * PAD, bold=True)
    top = 2 * PAD + text_height("host", len(label)) + above.height
    height = top + bottom + PAD
    frame = Box(kind="host", width=width, height=height, lines=label, devices=part.members(), copies=machine.nodes)
    placed = inside.moved((width - content.width) / 2, top)
    return Drawing((frame, *placed.boxes), placed.lines)


class _Content:
    """Places what is in a part of the tree, and so on inwards."""

    def __init__(self, machine: Machine, root: Part, mark: Mark) -> None:
        self.machine, self.root, self.mark = machine, root, mark
        self.devices = devices_of(machine)
        self.order = {device: i for i, device in enumerate(self.devices)}

    def block(self, part: Part) -> Block:
        """Place GPUs and frames in the order of their devices, and below them the NICs."""
        above = [(min(map(self.order.__getitem__, inner.members())), self.frame(inner)) for inner in part.parts]
        nics: list[Nic] = []
        for device in map(self.devices.__getitem__, part.devices):
            if isinstance(device, Gpu):
                above.append((self.order[device.id], gpu_block(device)))
            else:
                nics.append(device)
        upper = self._in_order([block for _, block in sorted(above, key=lambda entry: entry[0])], bool(part.parts))
        gpus = sum(isinstance(self.devices[device], Gpu) for device in part.members())
        least = (2 if gpus else NICS_IN_A_ROW) * (WIDTH + GAP)
        return column((upper, rows(nic_blocks(nics, gpus), max(upper.width, least))))

    def _in_order(self, blocks: Sequence[Block], frames: bool) -> Block:
        """Put GPUs side by side, in as many rows as the host's GPUs need; frames always, since rows are inside them."""
        depth = ceil(len(self.machine.gpus) / GPUS_IN_A_ROW)
        return row(blocks) if frames or depth <= 1 else grid(blocks, ceil(len(blocks) / depth))

    def frame(self, part: Part) -> Block:
        """Place a part with the frame around it."""
        assert part.node is not None  # the root alone has none, and no frame
        members = part.members()
        inside = [link for link in self.machine.links if link.a in members and link.b in members]
        paths = (link for link in inside if link.kind in TREE_KINDS)
        hit = self.mark.hits(link for link in paths if smallest(self.root, frozenset((link.a, link.b))) == part)
        links = [link for link in inside if link.kind == part.node.kind]
        facts = [*frame_label(part.node, links, self._domain(part)), *([self.mark.words] if hit else [])]
        return framed(part.node.kind, self.block(part), facts, devices=members, slowest=hit)

    def _domain(self, part: Part) -> int | None:
        """Return the number of the NUMA node that a frame is, where the devices know it."""
        if part.node is None or part.node.kind != "numa-node":
            return None
        known = (self.devices[device].numa for device in part.members())
        return next((numa for numa in known if isinstance(numa, int) and numa >= 0), None)


def _sockets(machine: Machine, tree: Tree, boxes: Sequence[Box], content: Block, mark: Mark) -> Drawing:
    """Draw the link between sockets as a bar below what it joins; nothing where there is none."""
    links = [link for link in machine.links if link.kind == "inter-socket"]
    below = tree.below()
    domains = (tuple(below[end]) for between in tree.between for end in (between.a, between.b))
    groups = list(sides(nested(tree), links)) or list(domains)
    if not groups:
        return Drawing(())
    ends = dict.fromkeys(_box_of(group, boxes) for group in groups)
    hit = mark.hits(links)
    facts = [*socket_label(machine, links, tree.between), *([mark.words] if hit else [])]
    sockets = bar("socket", facts, 0.0, content.height + STUB, content.width, slowest=hit)
    return Drawing((sockets,), tuple(_drop("inter-socket", end, sockets.y, boxes) for end in ends))


def _with_network(machine: Machine, host: Drawing) -> Drawing:
    """Add the network between hosts as a bar below the one that is drawn, with a line from each adapter."""
    if machine.nodes == 1:
        return host
    frame = host.boxes[0]
    y = frame.bottom + COPIES * COPY_OFFSET + STUB
    network = bar("net", network_label(machine), frame.x, y, frame.width)
    used = {nic.id for nic in network_nics(machine)}
    ends = [box for box in host.boxes if box.kind == "nic" and used & set(box.devices)] or [frame]
    drops = [_drop("network", end, network.y, host.boxes) for end in ends]
    return Drawing((*host.boxes, network), (*host.lines, *drops))


def _drop(kind: LineKind, box: Box, y: float, boxes: Iterable[Box]) -> Line:
    """Lead a line from a box straight down, or around by its right side where another device is below it."""
    below = any(
        other.kind in DEVICES and other.y >= box.bottom and other.x < box.middle < other.right for other in boxes
    )
    side, middle = box.right + GAP / 2, box.y + box.height / 2
    around = ((box.right, middle), (side, middle), (side, y))
    return Line(kind=kind, points=around if below else ((box.middle, box.bottom), (box.middle, y)), ends=box.devices)


def _box_of(devices: Sequence[str], boxes: Sequence[Box]) -> Box:
    """Find the outermost box of these devices: their frame, or the box that one of them shares with others."""
    frames = (box for box in boxes if box.kind in FRAMES and set(box.devices) == set(devices))
    shared = (box for box in boxes if box.kind in DEVICES and set(devices) & set(box.devices))
    return next(frames, None) or next(shared)


def _placed(keys: Sequence[Key], top: float, room: float) -> tuple[Key, ...]:
    """Put the entries of the legend beside each other, in as many rows as they need."""
    placed: list[Key] = []
    x, y = 0.0, top
    for key in keys:
        width = SWATCH + PAD + text_width(key.words, SMALL) + 2 * PAD
        if x and x + width > room:
            x, y = 0.0, y + 2 * SMALL
        placed.append(replace(key, x=MARGIN + x, y=y))
        x += width
    return tuple(placed)

"""Draw a laid-out picture as SVG.

Colours are the colour-blind-safe ones of Okabe and Ito (https://jfly.uni-koeln.de/color/); kinds also differ in width,
dashes and words. They are attributes, which every program reads, and classes, which the page's dark scheme overrides.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from advisor.picture.blocks import PAD, text_height
from advisor.picture.layout import COPIES, COPY_OFFSET, MARGIN, SWATCH
from advisor.picture.shapes import BARS, FRAMES, Box, Key, Line, Picture
from advisor.picture.words import FONTS, LARGE, LEADING, SMALL, TITLE, text_width
from advisor.rules.errors import AdvisorError

if TYPE_CHECKING:
    import drawsvg

INSTALL = "pip install 'topology-advisor[picture]'"
PAPER, INK, FAINT = "#ffffff", "#1a1a1a", "#555555"
STRONG = "#d55e00"  # vermillion
STYLES: dict[str, dict[str, Any]] = {
    "host": {"fill": "#ffffff", "stroke": "#555555", "stroke_width": 1.5},
    "numa-node": {"fill": "#f4f4f4", "stroke": "#8a8a8a"},
    "host-bridge": {"fill": "#fbf6e4", "stroke": "#b89a2f"},
    "pcie-switches": {"fill": "#e3eef6", "stroke": "#6a93b0", "stroke_dasharray": "6 3"},
    "pcie-switch": {"fill": "#e3eef6", "stroke": "#4d7c9c"},
    "gpu": {"fill": "#b9e3d3", "stroke": "#00694c", "stroke_width": 1.5},
    "nic": {"fill": "#ffffff", "stroke": "#0072b2", "stroke_width": 1.5},
    "fabric": {"fill": "#d9efe7", "stroke": "#009e73", "stroke_width": 2},
    "mesh": {"fill": "#d9efe7", "stroke": "#009e73", "stroke_width": 2, "stroke_dasharray": "8 4"},
    "socket": {"fill": "#f3dfea", "stroke": "#a8487b", "stroke_width": 1.5},
    "net": {"fill": "#d6eaf8", "stroke": "#0072b2", "stroke_width": 1.5},
    "nvlink": {"stroke": "#009e73"},
    "xgmi": {"stroke": "#009e73"},
    "c2c": {"stroke": "#009e73"},
    "host-memory": {"stroke": "#b89a2f"},
    "inter-socket": {"stroke": "#a8487b", "stroke_dasharray": "5 3"},
    "network": {"stroke": "#0072b2", "stroke_dasharray": "2 2"},
    "slowest": {"stroke": STRONG},
}


def svg_of(picture: Picture) -> str:
    """Draw the picture. Raises AdvisorError where drawsvg is not installed."""
    try:
        import drawsvg
    except ImportError as error:
        raise AdvisorError("pictures need the drawsvg package", INSTALL) from error
    drawing = drawsvg.Drawing(
        picture.width, picture.height, font_family=FONTS, class_="topology", role="img", aria_label=picture.title[0]
    )
    drawing.append(drawsvg.Rectangle(0, 0, picture.width, picture.height, fill=PAPER, class_="paper"))
    for element in _elements(picture):
        drawing.append(element)
    return str(drawing.as_svg())


def _elements(picture: Picture) -> Iterator["drawsvg.DrawingElement"]:
    """Yield what is drawn, the hindmost first: frames, lines, devices and bars, labels on top."""
    frames = [box for box in picture.boxes if box.kind in FRAMES]
    for box in frames:
        yield from _rectangle(box)
    for line in sorted(picture.lines, key=lambda line: (line.slowest, line.width)):
        yield from _line(line)
    for box in picture.boxes:
        if box.kind not in FRAMES:
            yield from _rectangle(box)
            yield from _inside(box)
    for box in frames:
        yield from _label(box)
    for line in picture.lines:
        if line.label:
            yield from _tag(line)
    for i, words in enumerate(picture.title):
        yield _text(words, MARGIN, MARGIN + TITLE * (1 + LEADING * i), size=TITLE, bold=True)
    for key in picture.keys:
        yield from _key(key)
    for i, words in enumerate(picture.caption):
        yield _text(words, MARGIN, picture.caption_y + LEADING * SMALL * i, fill=FAINT, class_="faint")


def _rectangle(box: Box) -> Iterator["drawsvg.DrawingElement"]:
    import drawsvg

    style = STYLES[box.kind] | ({"stroke": STRONG, "stroke_width": 3} if box.slowest else {})
    names = f"{box.kind} slowest" if box.slowest else box.kind
    for behind in range(min(box.copies, COPIES) - 1, 0, -1):
        shift = behind * COPY_OFFSET
        yield drawsvg.Rectangle(box.x + shift, box.y + shift, box.width, box.height, rx=6, class_=names, **style)
    shape = drawsvg.Rectangle(
        box.x, box.y, box.width, box.height, rx=6 if box.kind in FRAMES else 4, class_=names, **style
    )
    if box.tooltip:
        shape.append_title(box.tooltip)
    yield shape


def _inside(box: Box) -> Iterator["drawsvg.DrawingElement"]:
    """Write the lines of a device or a bar, centred; the first of a device is its name."""
    bar = box.kind in BARS
    y = box.y + (box.height - text_height("host" if bar else box.kind, len(box.lines))) / 2
    for i, words in enumerate(box.lines):
        size = SMALL if bar or i else LARGE
        strong: dict[str, Any] = {"fill": STRONG, "class_": "strong"} if box.slowest else {}
        y += LEADING * size
        yield _text(words, box.middle, y - 0.3 * size, size=size, bold=bar or i == 0, centred=True, **strong)


def _label(box: Box) -> Iterator["drawsvg.DrawingElement"]:
    """Write the label of a frame: of a host on top, of others below what they hold."""
    import drawsvg

    height = text_height(box.kind, len(box.lines))
    y = box.y + PAD / 2 if box.kind == "host" else box.bottom - height - PAD / 2
    bold = box.kind == "host" or box.slowest
    strong: dict[str, Any] = {"fill": STRONG, "class_": "strong"} if box.slowest else {}
    for words in box.lines:
        width = text_width(words, SMALL, bold=bold)
        fill = STYLES[box.kind]["fill"]
        yield drawsvg.Rectangle(
            box.x + PAD - 2, y + 1, width + 2, LEADING * SMALL, fill=fill, class_=f"{box.kind} bare"
        )
        y += LEADING * SMALL
        yield _text(words, box.x + PAD, y - 0.3 * SMALL, bold=bold, **strong)


def _line(line: Line) -> Iterator["drawsvg.DrawingElement"]:
    style = STYLES[line.kind] | ({"stroke": STRONG, "stroke_dasharray": "none"} if line.slowest else {})
    names = f"{line.kind} slowest" if line.slowest else line.kind
    if line.slowest:  # dark edges tell it apart without colour
        yield _path(line, stroke=INK, stroke_width=line.width + 3.5, class_="casing")
    path = _path(line, stroke_width=line.width + 1 if line.slowest else line.width, class_=names, **style)
    if line.tooltip:
        path.append_title(line.tooltip)
    yield path


def _path(line: Line, **style: Any) -> "drawsvg.Path":
    import drawsvg

    path = drawsvg.Path(fill="none", **style)
    (x, y), *rest = line.points
    path.M(x, y)
    if line.curved:
        path.C(*(value for point in rest for value in point))
        return path
    for point in rest:
        path.L(*point)
    return path


def _tag(line: Line) -> Iterator["drawsvg.DrawingElement"]:
    import drawsvg

    x, y = line.label_at
    width = text_width(line.label, SMALL, bold=line.slowest) + 4
    yield drawsvg.Rectangle(x - width / 2, y - 0.65 * SMALL, width, 1.3 * SMALL, rx=3, fill=PAPER, class_="host bare")
    strong: dict[str, Any] = {"fill": STRONG, "class_": "strong"} if line.slowest else {}
    yield _text(line.label, x, y + 0.36 * SMALL, centred=True, bold=line.slowest, **strong)


def _key(key: Key) -> Iterator["drawsvg.DrawingElement"]:
    import drawsvg

    style = STYLES[key.kind]
    if "fill" in style:
        yield drawsvg.Rectangle(key.x, key.y - 10, SWATCH, 13, rx=3, class_=key.kind, **style)
    else:
        width = 4 if key.kind == "slowest" else 3
        yield drawsvg.Line(key.x, key.y - 4, key.x + SWATCH, key.y - 4, stroke_width=width, class_=key.kind, **style)
    yield _text(key.words, key.x + SWATCH + PAD, key.y)


def _text(
    words: str, x: float, y: float, *, size: float = SMALL, bold: bool = False, centred: bool = False, **style: Any
) -> "drawsvg.DrawingElement":
    import drawsvg

    more = {"fill": INK, "class_": "ink"} | style
    if bold:
        more["font_weight"] = "bold"
    if centred:
        more["text_anchor"] = "middle"
    return drawsvg.Text(words, size, x, y, **more)

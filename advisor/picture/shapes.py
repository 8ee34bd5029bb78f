"""What a picture is made of: plain values with coordinates in pixels, from the top left. No drawing here."""

from typing import Literal

from advisor.rules.machine import Value

BoxKind = Literal[
    "host", "numa-node", "host-bridge", "pcie-switches", "pcie-switch", "gpu", "nic", "fabric", "mesh", "socket", "net"
]
LineKind = Literal["nvlink", "xgmi", "c2c", "host-memory", "inter-socket", "network"]
Point = tuple[float, float]

FRAMES: tuple[BoxKind, ...] = ("host", "numa-node", "host-bridge", "pcie-switches", "pcie-switch")
BARS: tuple[BoxKind, ...] = ("fabric", "mesh", "socket", "net")
DEVICES: tuple[BoxKind, ...] = ("gpu", "nic")


class Box(Value, frozen=True, kw_only=True):
    """A rectangle with lines of text: a device, a frame around devices, or a bar that devices attach to."""

    kind: BoxKind
    x: float = 0.0
    y: float = 0.0
    width: float
    height: float
    lines: tuple[str, ...] = ()
    tooltip: str = ""  # the whole story, where `lines` are short
    devices: tuple[str, ...] = ()  # ids that the box stands for or holds
    slowest: bool = False  # the best ring is as slow as this
    copies: int = 1  # equal hosts that the box stands for

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height

    @property
    def right(self) -> float:
        return self.x + self.width


class Line(Value, frozen=True, kw_only=True):
    """A line between boxes: straight through its points, or an arc where there are four (a cubic Bezier curve)."""

    kind: LineKind
    points: tuple[Point, ...]
    width: float = 2.0
    curved: bool = False
    label: str = ""
    label_at: Point = (0.0, 0.0)  # the label's centre
    tooltip: str = ""
    ends: tuple[str, ...] = ()  # ids of devices
    slowest: bool = False


class Key(Value, frozen=True, kw_only=True):
    """An entry of the legend."""

    kind: BoxKind | LineKind | Literal["slowest"]
    words: str
    x: float = 0.0
    y: float = 0.0


class Picture(Value, frozen=True, kw_only=True):
    width: float
    height: float
    title: tuple[str, ...]
    boxes: tuple[Box, ...]  # outer ones first
    lines: tuple[Line, ...]
    keys: tuple[Key, ...]
    caption: tuple[str, ...]
    caption_y: float

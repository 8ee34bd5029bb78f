"""Read RDMA devices: what `ibstat`, `ibstatus`, `ibv_devinfo`, `rdma link` or a port's counter in /sys print."""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from msgspec.structs import replace

from advisor.probe.text.paste import plain
from advisor.rules.machine import Machine, Nic

MOST_DEVICES = 512
GIGABIT = 1e9 / 8  # bytes per second

# The head of a device's block in each of the outputs.
_HEAD = re.compile(
    r"^[ \t]*(?:CA '(\w{1,32})'|Infiniband device '(\w{1,32})' port \d+ status:|hca_id:\s+(\w{1,32}))[ \t\r]*$",
    re.MULTILINE,
)
_STATE = re.compile(r"^[ \t]*[Ss]tate:\s+(?:\d: )?(?:PORT_)?(\w+)", re.MULTILINE)
_RATE = re.compile(r"^[ \t]*[Rr]ate:\s+(\d{1,5}(?:\.\d)?)", re.MULTILINE)
_WIDTH = re.compile(r"^[ \t]*active_width:\s+(\d{1,2})X", re.MULTILINE)
_SPEED = re.compile(r"^[ \t]*active_speed:\s+(\d{1,4}(?:\.\d{1,3})?) Gbps", re.MULTILINE)
_LAYER = re.compile(r"^[ \t]*[Ll]ink[ _]layer:\s+(\w+)", re.MULTILINE)
_RDMA_LINK = re.compile(r"^[ \t]*(?:\d+: )?link (\w{1,32})/\d+ state (\w+)", re.MULTILINE)
_COUNTER = re.compile(r"/sys/class/infiniband/(\w{1,32})/ports/\d+/counters/link_downed\W{0,4}\s+(\d{1,18})\b")
_KINDS: dict[str, Literal["infiniband", "roce", "efa"]] = {"InfiniBand": "infiniband", "Ethernet": "roce"}


class Port(NamedTuple):
    device: str
    state: Literal["active", "down"] | None = None
    bandwidth: float | None = None
    layer: str | None = None


def read_rdma(text: str, source: str) -> Machine | None:
    """Build a machine of which only the RDMA devices are known; None where the text lists none."""
    if not re.search(r"CA '|nfiniband|hca_id|link \w+/\d+ state", text):
        return None
    text = plain(text.replace("`", "'"))
    nics: dict[str, Nic] = {}
    for port in (*_blocks(text), *(Port(name, _state(state)) for name, state in _RDMA_LINK.findall(text))):
        nics[port.device] = _with_port(nics.get(port.device, Nic(id=port.device, name=port.device)), port)
    for name, count in _COUNTER.findall(text):
        nics[name] = replace(nics.get(name, Nic(id=name, name=name)), link_downed=int(count))
    if not nics:
        return None
    return Machine(nics=tuple(nics.values())[:MOST_DEVICES], source=source)


def _blocks(text: str) -> Iterator[Port]:
    """Yield the ports: ibstat and ibv_devinfo print several below the name of a device."""
    heads = list(_HEAD.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=False):
        name = head[1] or head[2] or head[3]
        parts = re.split(r"^[ \t]*[Pp]ort(?: \d+)?:", text[head.end() : end], flags=re.MULTILINE)
        for part in parts[1:] or parts:
            yield _port(name, part)


def _port(name: str, text: str) -> Port:
    state, layer, rate = _STATE.search(text), _LAYER.search(text), _RATE.search(text)
    width, speed = _WIDTH.search(text), _SPEED.search(text)
    gigabits = float(rate[1]) if rate else int(width[1]) * float(speed[1]) if width and speed else None
    return Port(
        name,
        _state(state[1]) if state else None,
        GIGABIT * gigabits if gigabits else None,
        layer[1] if layer else None,
    )


def _state(word: str) -> Literal["active", "down"]:
    return "active" if word.lower() == "active" else "down"


def _with_port(nic: Nic, port: Port) -> Nic:
    """Add a port: a device is active if one of its ports is, and carries what its active ports carry together."""
    kind = "efa" if port.device.startswith(("rdmap", "efa_")) else _KINDS.get(port.layer or "")
    carries = port.bandwidth if port.state != "down" else None
    return replace(
        nic,
        kind=nic.kind or kind,
        state="active" if "active" in (nic.state, port.state) else nic.state or port.state,
        bandwidth=(nic.bandwidth or 0) + (carries or 0) or None,
    )

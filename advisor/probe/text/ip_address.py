"""Read network interfaces: what `ip address`, `ip link`, `ip route`, also with -br, or `ifconfig` print."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from advisor.probe.interfaces import Kind, kind_by_name
from advisor.probe.text.paste import plain
from advisor.rules.machine import Interface, Machine

MOST_INTERFACES, MOST_ADDRESSES = 1000, 64
LAYERS: dict[str, Kind] = {"loopback": "loopback", "infiniband": "infiniband"}

_NAME = r"[A-Za-z][\w.-]{0,30}"
_STATES = r"UP|DOWN|UNKNOWN|LOWERLAYERDOWN|DORMANT|NOTPRESENT"
_BRIEF = re.compile(rf"^[ \t]*({_NAME})(?:@\S{{1,32}})?\s+({_STATES})(?=\s|$)([^\n]*)$", re.MULTILINE)
_HEAD = re.compile(rf"^[ \t]*\d{{1,5}}:\s+({_NAME})(?:@\S{{1,32}})?:\s+<([A-Z0-9_,-]*)>([^\n]*)$", re.MULTILINE)
_OLD_HEAD = re.compile(
    rf"^({_NAME})(?::\d+)?(?::\s+flags=\d+<([A-Z0-9_,-]*)>|\s+Link encap:(Ethernet|Local Loopback|InfiniBand|UNSPEC))",
    re.MULTILINE,
)
_ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}/\d{1,2}\b|(?<![\w:])[0-9a-fA-F]{0,4}:[0-9a-fA-F:]{2,40}/\d{1,3}\b")
_INET = re.compile(r"^[ \t]+inet6? (?:addr: ?)?([0-9a-fA-F.:]{3,45}(?:/\d{1,3})?)", re.MULTILINE)
_MASK = re.compile(r"netmask (?:0x([0-9a-f]{8})|([\d.]{7,15}))|Mask:([\d.]{7,15})")
_DEFAULT = re.compile(rf"^[ \t]*default (?:via \S{{1,45}} )?dev ({_NAME})", re.MULTILINE)


class Block(NamedTuple):
    name: str
    flags: str | None  # of the head: BROADCAST,UP,LOWER_UP
    text: str  # up to the next head


def read_ip_address(text: str, source: str) -> Machine | None:
    """Build a machine of which only the interfaces are known; None where the text lists none."""
    text = plain(text)
    found: dict[str, Interface] = {}
    for name, state, rest in _BRIEF.findall(text):
        _add(found, name, up=state in ("UP", "UNKNOWN"), addresses=_addresses(rest))
    for block in _blocks(text):
        _add(found, block.name, **_facts(block))
    routes = dict.fromkeys(_DEFAULT.findall(text))
    if routes:
        for name in routes:
            _add(found, name)
        found = {name: replace(interface, default_route=name in routes) for name, interface in found.items()}
    if not found:
        return None
    return Machine(interfaces=tuple(found.values())[:MOST_INTERFACES], source=source)


def _add(found: dict[str, Interface], name: str, **facts: Any) -> None:
    """Add an interface, or to the one of this name what is not known yet."""
    there = found.get(name) or Interface(name=name, kind=kind_by_name(name))
    addresses = tuple(dict.fromkeys((*there.addresses, *facts.pop("addresses", ()))))[:MOST_ADDRESSES]
    gaps = {field: value for field, value in facts.items() if value is not None}
    found[name] = replace(there, addresses=addresses, **gaps)


def _addresses(text: str) -> tuple[str, ...]:
    return tuple(_ADDRESS.findall(text))


def _blocks(text: str) -> Iterator[Block]:
    heads = sorted((*_HEAD.finditer(text), *_OLD_HEAD.finditer(text)), key=lambda head: head.start())
    ends = [head.start() for head in heads[1:]] + [len(text)]
    for head, end in zip(heads, ends, strict=False):
        yield Block(head[1], head[2], text[head.start() : end][:20_000])


def _facts(block: Block) -> dict[str, Any]:
    """Read the state, the layer and the addresses of an interface in full form."""
    state = re.search(rf"\bstate ({_STATES})\b", block.text)
    flags = block.flags.split(",") if block.flags is not None else re.findall(r"\b(?:UP|RUNNING)\b", block.text)
    up = "UP" in flags and "NO-CARRIER" not in flags if state is None else state[1] in ("UP", "UNKNOWN")
    layer = re.search(r"\blink/(\w+)|\bLink encap:(\w+)|\((Local Loopback|InfiniBand)\)", block.text)
    word = next((group for group in layer.groups() if group), "").lower() if layer else ""
    kind = LAYERS.get(word.removeprefix("local ").replace("local", "loopback"))
    facts: dict[str, Any] = {"up": up, "addresses": tuple(_inet(block.text))}
    return facts | ({"kind": kind} if kind else {})


def _inet(text: str) -> Iterator[str]:
    """Yield the addresses with the lengths of their networks, which `ifconfig` writes as masks."""
    for match in _INET.finditer(text):
        address = match[1]
        line = text[match.start(1) : text.find("\n", match.end()) if "\n" in text[match.end() :] else len(text)]
        length = _length(line) if "." in address else re.search(r"prefixlen (\d{1,3})", line)
        suffix = length[1] if isinstance(length, re.Match) else length
        yield address if "/" in address or suffix is None else f"{address}/{suffix}"


def _length(line: str) -> str | None:
    """Return the length of the network from a mask, 255.255.240.0 or 0xfffff000."""
    mask = _MASK.search(line)
    if mask is None:
        return None
    if mask[1]:
        return str(int(mask[1], 16).bit_count())
    parts = [int(part) for part in (mask[2] or mask[3]).split(".") if part]
    return str(sum(part.bit_count() for part in parts))

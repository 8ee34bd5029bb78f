"""The words of a picture: labels of frames and bars, the legend, and where the numbers come from."""

from collections.abc import Iterable, Iterator, Sequence

from advisor.picture.devices import NETWORKS
from advisor.picture.joins import KINDS, speed_in_words
from advisor.picture.shapes import Box, BoxKind, Key, Line
from advisor.picture.slowest import Mark
from advisor.report.fabric import ring_speed_in_words
from advisor.report.matrix import code_in_words, nearness
from advisor.rules.fabric import Fabric
from advisor.rules.format import bandwidth, folded, memory
from advisor.rules.graph import network_nics
from advisor.rules.links import WHAT, nvlink_count
from advisor.rules.machine import Link, LinkKind, Machine
from advisor.rules.pcie_tree import Between, Node, TreeKind

_BOX_OF: dict[LinkKind, BoxKind] = {  # that shows what a code says
    "pcie-switch": "pcie-switch",
    "pcie-switches": "pcie-switches",
    "host-bridge": "host-bridge",
    "numa-node": "numa-node",
    "inter-socket": "socket",
}
_FRAMES: dict[TreeKind, str] = {
    "pcie-switch": "PCIe switch",
    "pcie-switches": "PCIe switches",
    "host-bridge": "host bridge",
    "numa-node": "NUMA node",
}
_BETWEEN_SOCKETS = {"GenuineIntel": "UPI", "AuthenticAMD": "Infinity Fabric"}
_LINES = {
    "nvlink": "NVLink, the wider the more links",
    "xgmi": "AMD Infinity Fabric",
    "c2c": "chip to chip",
    "host-memory": "host memory",
    "network": "network adapter of each host",
}


def host_label(machine: Machine) -> list[str]:
    """Describe the host: how often it is there, processor, memory."""
    host = machine.host
    cpu = f"{host.sockets}x {host.cpu}" if host.sockets and host.cpu else host.cpu
    facts = (
        f"{machine.nodes:,} hosts like this one" if machine.nodes > 1 else "",
        cpu,
        f"{memory(host.memory)} of memory" if host.memory else "",
    )
    return [fact for fact in facts if fact] or ["host"]


def frame_label(node: Node, links: Sequence[Link], domain: int | None) -> list[str]:
    """Name what a frame stands for, with the code and speed of the pairs that meet in it, and its way up."""
    name = _FRAMES[node.kind] if domain is None else f"{_FRAMES[node.kind]} {domain}"
    uplink = ""
    if node.bandwidth is not None:
        uplink = f"uplink {bandwidth(node.bandwidth)}" + (" (assumed)" if node.source == "assumed" else "")
    return [fact for fact in (name, *_codes_and_speed(links), uplink) if fact]


def socket_label(machine: Machine, links: Sequence[Link], between: Sequence[Between]) -> list[str]:
    """Name the link between sockets as its vendor does, where the vendor is known."""
    vendor = _BETWEEN_SOCKETS.get(machine.host.cpu_vendor or "")
    facts = _codes_and_speed(links) or [f"{bandwidth(k.bandwidth)} ({k.source})" for k in between if k.bandwidth][:1]
    return [f"between NUMA nodes ({vendor})" if vendor else "between NUMA nodes", *facts]


def network_label(machine: Machine) -> list[str]:
    """Describe the network by the adapters of one host."""
    nics = network_nics(machine)
    name = f"network between {machine.nodes:,} hosts"
    if not nics:
        return [name, "adapters not known"]
    first = nics[0]
    each = [f"{len(nics)}x", NETWORKS[first.kind] if first.kind else "adapter"]
    if first.bandwidth is None:
        return [name, " ".join(each)]
    total = f" = {bandwidth(len(nics) * first.bandwidth)}" if len(nics) > 1 else ""
    return [name, f"{' '.join(each)} {bandwidth(first.bandwidth)}{total} a host"]


def keys_of(machine: Machine, boxes: Sequence[Box], lines: Sequence[Line], mark: Mark) -> list[Key]:
    """List what the legend explains: the lines and codes that occur, the nearest first."""
    drawn = {line.kind for line in lines}
    keys = [Key(kind=kind, words=_LINES[kind]) for kind in (*KINDS, "network") if kind in drawn]
    kinds = {box.kind for box in boxes}
    for link, _ in folded(sorted(machine.links, key=lambda link: nearness(link.kind)), _code):
        kind = _BOX_OF.get(link.kind)
        if kind is not None and kind in kinds:
            keys.append(Key(kind=kind, words=f"{link.code}: {code_in_words(link.code, link.kind)}"))
    if any(box.slowest for box in boxes) or any(line.slowest for line in lines):
        keys.append(Key(kind="slowest", words=mark.words))
    return keys


def caption_of(machine: Machine, fabric: Fabric) -> Iterator[str]:
    """Say the order of the ring if all its hops are known, what the codes can move, and who says so."""
    ring, slowest = fabric.ring, fabric.slowest_link
    if ring is not None and slowest is not None:
        speed = ring_speed_in_words(machine, ring)
        yield f"Best ring{f' ({speed})' if speed else ''}: {' → '.join((*ring.order, ring.order[0]))}"
    speeds = list(_speeds(machine.links))
    if speeds:
        yield f"One pair, one direction: {'; '.join(speeds)}"
    if slowest is not None:
        speed = speed_in_words([slowest])
        yield f"Slowest link of the ring: {slowest.a} - {slowest.b}, {slowest.code} {speed}".rstrip()
    for entry in machine.unknown:
        if entry.what == WHAT:
            yield f"Bandwidths not known: {entry.why}"
    yield f"Source: {machine.source}"


def _speeds(links: Iterable[Link]) -> Iterator[str]:
    """Say for each source what the codes move by it: `NV2 51.6 GB/s, PIX 15.8 GB/s (data sheet)`."""
    nearest_first = sorted(links, key=lambda link: (nearness(link.kind), -nvlink_count(link.code)))
    known = [link for link in nearest_first if link.bandwidth is not None]
    for first, same in folded(known, lambda link: link.bandwidth_source):
        source = first.bandwidth_source
        listed = ", ".join(f"{link.code} {speed_in_words(alike, source)}" for link, alike in folded(same, _code))
        yield f"{listed} ({source})" if source else listed


def _codes_and_speed(links: Iterable[Link]) -> list[str]:
    found = list(links)
    codes = ", ".join(dict.fromkeys(link.code for link in found))
    return [" ".join(part for part in (codes, speed_in_words(found, "data sheet")) if part)] if found else []


def _code(link: Link) -> str:
    return link.code

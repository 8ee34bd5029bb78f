"""List the network interfaces: /sys/class/net, their addresses from psutil, the default route from /proc/net/route."""

from ipaddress import ip_interface
from pathlib import Path

from advisor.probe.interfaces import Kind, kind_by_name
from advisor.probe.live.sysfs import ROOT, folders, read, read_int
from advisor.rules.machine import Interface

KINDS: dict[int, Kind] = {772: "loopback", 32: "infiniband", 768: "tunnel", 776: "tunnel", 65534: "tunnel"}  # ARPHRD_*
UP = 0x1  # IFF_UP


def read_interfaces(root: Path = ROOT) -> tuple[Interface, ...]:
    """List the interfaces in the kernel's order of names; `ip -br address` shows the same."""
    cards = [card for card in folders(root / "sys/class/net") if (card / "type").exists()]
    addresses = _addresses() if cards and root == ROOT else {}
    default = _default_routes(root)
    return tuple(
        Interface(
            name=card.name,
            kind=_kind(card),
            up=_is_up(card),
            addresses=addresses.get(card.name, ()),
            bandwidth=_bandwidth(card),
            default_route=None if default is None else card.name in default,
        )
        for card in cards
    )


def _kind(card: Path) -> Kind | None:
    number = read_int(card / "type")
    if (card / "bridge").exists():
        return "bridge"
    if (card / "tun_flags").exists():
        return "tunnel"
    if number in KINDS:
        return KINDS[number]
    by_name = kind_by_name(card.name)
    has_hardware = (card / "device").exists() or (card / "bonding").exists() or by_name == "ethernet"
    return "ethernet" if has_hardware and by_name in (None, "ethernet") else by_name or "virtual"


def _is_up(card: Path) -> bool | None:
    """Say whether an interface carries traffic; a loopback's state is "unknown" though it does."""
    state, flags = read(card / "operstate"), read(card / "flags") or ""
    if state is None or (state == "unknown" and not flags.startswith("0x")):
        return None
    return state == "up" or (state == "unknown" and bool(int(flags, 16) & UP))


def _bandwidth(card: Path) -> float | None:
    megabits = read_int(card / "speed")
    return megabits * 1e6 / 8 if megabits and megabits > 0 else None


def _addresses() -> dict[str, tuple[str, ...]]:
    """Return each interface's addresses, those of IPv6 that hold on one link only left out."""
    import socket

    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    found: dict[str, tuple[str, ...]] = {}
    try:
        known = psutil.net_if_addrs()
    except (OSError, RuntimeError):
        return found
    for name, entries in known.items():
        texts = [_with_length(entry.address, entry.netmask) for entry in entries if entry.family in families]
        found[name] = tuple(text for text in texts if text is not None and not text.startswith("fe80:"))
    return found


def _with_length(address: str, mask: str | None) -> str | None:
    """Write 10.0.0.5 and 255.255.255.0 as 10.0.0.5/24."""
    address = address.partition("%")[0]
    try:
        if ":" in address:
            groups = (mask or "").split(":")
            length = sum(int(group, 16).bit_count() for group in groups if group)
            return str(ip_interface(f"{address}/{length or 128}"))
        return str(ip_interface(f"{address}/{mask}" if mask else address))
    except ValueError:
        return None


def _default_routes(root: Path) -> set[str] | None:
    """Name the interfaces to which the kernel sends what no other route takes; None where the table can't be read."""
    table = read(root / "proc/net/route")
    if table is None:
        return None
    rows = [line.split() for line in table.splitlines()[1:]]
    return {row[0] for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"}

"""List the network cards that can carry training traffic: /sys/class/infiniband and /sys/class/net."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import structs

from advisor.probe.live.pci_tree import pci_device
from advisor.probe.live.sysfs import ROOT, folders, numa_node, read, read_int
from advisor.rules.machine import Nic, Unknown

STATES: dict[str, Literal["active", "down"]] = {"up": "active", "down": "down"}
NO_NODE = "the kernel knows no NUMA node for it, as in a virtual machine or a host with one node"


def read_nics(root: Path = ROOT, ids: Mapping[str, str] | None = None) -> tuple[tuple[Nic, ...], tuple[Unknown, ...]]:
    """List the cards with hardware behind them: no loopback, bridges, bonds or container interfaces.

    ids: what another source calls a device, mlx5_0 -> NIC0; the others are called by their own name.
    """
    rdma = [_rdma_nic(device) for device in folders(root / "sys/class/infiniband")]
    plain = [_ethernet_nic(card) for card in folders(root / "sys/class/net") if _is_plain_ethernet(card)]
    if not rdma and not plain:
        why = "no network card in /sys/class/net; a container sees only its own interface"
        return (), (Unknown(what="nics", why=why),)
    nics: list[Nic] = []
    unknown: list[Unknown] = []
    for found, reasons in rdma + plain:
        nic = structs.replace(found, id=(ids or {}).get(found.id, found.id))
        nics.append(nic)
        unknown += [Unknown(what=f"{nic.id}.{f}", why=why) for f, why in reasons.items() if getattr(nic, f) is None]
    return tuple(nics), tuple(unknown)


def _rdma_nic(device: Path) -> tuple[Nic, dict[str, str]]:
    """Read an RDMA device (`ibstat`): the sum of its active ports; with the reasons of what may be missing."""
    ports = [port for port in folders(device / "ports") if "ACTIVE" in (read(port / "state") or "")]
    rates = [rate for port in ports if (rate := _gigabits(read(port / "rate"))) is not None]
    nic = Nic(
        id=device.name,
        name=device.name,
        kind=_rdma_kind(device),
        bandwidth=sum(rates) or None,
        numa=numa_node(device / "device"),
        bus_id=pci_device(device / "device"),
        state="active" if ports else "down" if any(folders(device / "ports")) else None,
        link_downed=_link_downed(device),
    )
    slow = "its ports tell no rate" if ports else "none of its ports is active; see `ibstat`"
    return nic, {"kind": "its ports tell no link layer", "bandwidth": slow, "numa": NO_NODE}


def _link_downed(device: Path) -> int | None:
    """Add up how often the ports lost their links; Ethernet keeps no such counter."""
    counts = [read_int(port / "counters/link_downed") for port in folders(device / "ports")]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _rdma_kind(device: Path) -> Literal["infiniband", "roce", "efa"] | None:
    if (device / "device/driver").resolve().name == "efa":
        return "efa"
    layers = {read(port / "link_layer") for port in folders(device / "ports")}
    if "InfiniBand" in layers:
        return "infiniband"
    return "roce" if "Ethernet" in layers else None


def _is_plain_ethernet(card: Path) -> bool:
    """Say whether an interface is Ethernet hardware that is not already listed as an RDMA device."""
    hardware = (card / "device").exists() and not (card / "device/infiniband").exists()
    return hardware and read_int(card / "type") == 1  # ARPHRD_ETHER; 32 is IP over InfiniBand


def _ethernet_nic(card: Path) -> tuple[Nic, dict[str, str]]:
    """Read an Ethernet card (`ethtool`), with the reasons of what may be missing."""
    megabits = read_int(card / "speed")  # -1, or an error, where there is no link or a virtual card without a speed
    nic = Nic(
        id=card.name,
        name=card.name,
        kind="ethernet",
        bandwidth=megabits * 1e6 / 8 if megabits and megabits > 0 else None,
        numa=numa_node(card / "device"),
        bus_id=pci_device(card / "device"),
        state=STATES.get(read(card / "operstate") or ""),
    )
    slow = "the link is down" if nic.state == "down" else "its driver tells no speed, as in most virtual machines"
    return nic, {"bandwidth": slow, "numa": NO_NODE}


def _gigabits(rate: str | None) -> float | None:
    """Turn "400 Gb/sec (4X NDR)" into bytes per second."""
    try:
        return float((rate or "").split(" ")[0]) * 1e9 / 8
    except ValueError:
        return None

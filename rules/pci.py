"""PCI addresses and link speeds, which each source writes in its own way."""

import re

from advisor.rules.hardware import pcie_bandwidth

# Transfers per second and lane, in 10^9, by generation: PCI Express base specification.
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_HIDDEN = re.compile(r"f+:ff:(?:ff|1f)\.[0-9a-f]")


def pci_address(text: str) -> str:
    """Write an address as the kernel does, 0000:3b:00.0 for 00000000:3B:00.0; domains above ffff keep their digits."""
    domain, colon, rest = text.strip().lower().partition(":")
    return f"{domain.lstrip('0').rjust(4, '0')}:{rest}" if colon else text


def is_hidden(address: str) -> bool:
    """Say whether this is what a virtual machine shows as the far end of an NVLink: all digits F."""
    return _HIDDEN.fullmatch(address.strip().lower()) is not None


def slot_of(address: str) -> str:
    """Cut the function off: the functions of one card share a slot."""
    return address.partition(".")[0]


def link_generation(speed: str | None) -> int | None:
    """Read the PCIe generation from "16 GT/s" or "32.0 GT/s PCIe"; None from "Unknown" and from nothing."""
    number = (speed or "").strip().split(" ")[0]
    return _GENERATIONS.get(float(number)) if re.fullmatch(r"\d{1,3}(\.\d)?", number) else None


def link_bandwidth(speed: str | None, width: str | None) -> float | None:
    """Return the bytes per second of a link, one direction; None where the speed or the number of lanes is hidden."""
    generation = link_generation(speed)
    lanes = (width or "").strip()
    if generation is None or not re.fullmatch(r"\d{1,2}", lanes) or int(lanes) == 0:
        return None
    return pcie_bandwidth(generation, int(lanes))

"""Read what `nvidia-smi --query-gpu=... --format=csv` prints: columns by its header, or by the command above it."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from advisor.probe.text.paste import plain
from advisor.rules.machine import Gpu, Machine, Pcie, Software
from advisor.rules.pci import pci_address

MIB = 2**20
MOST_GPUS, MOST_COLUMNS = 512, 100
LONGEST = 2000  # characters of a header

_COMMAND = re.compile(r"nvidia-smi[^\n]*--query-gpu[= ]([a-z_.,]{3,500})")
_HEADER = re.compile(
    r"^[ \t]*((?:[a-z_][a-z_.]{1,60}(?: \[[\w/%]{1,5}\])?, ?)*[a-z_][a-z_.]{1,60}(?: \[[\w/%]{1,5}\])?)[ \t\r]*$"
)
_SAME = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id"}
_KNOWN = {
    "index",
    "name",
    "uuid",
    "pci.bus_id",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "power.draw",
    "compute_mode",
    "compute_cap",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "driver_version",
}


def read_smi_csv(text: str, source: str) -> Machine | None:
    """Build a machine of the GPUs in a table of comma-separated values; None where the text holds none."""
    if not any(
        word in text for word in ("--query-gpu", "utilization.gpu", "memory.", "pcie.link", "pci.bus_id", "uuid,")
    ):
        return None
    gpus: dict[int, Gpu] = {}
    drivers: list[str] = []
    for place, row in _rows(plain(text).splitlines()):
        number = _number(row.get("index", "")) if "index" in row else place
        if number is not None and number < MOST_GPUS:
            gpus.setdefault(int(number), _gpu(int(number), row))
            drivers += [row["driver_version"]] if "driver_version" in row else []
    if not gpus:
        return None
    software = Software(driver=drivers[0]) if drivers and re.fullmatch(r"[\d.]{3,20}", drivers[0]) else Software()
    return Machine(gpus=tuple(gpu for _, gpu in sorted(gpus.items())), software=software, source=source)


def _rows(lines: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each row with its place below the header and its values by column."""
    columns: list[str] = []
    place = 0
    for line in lines:
        named = _columns(line)
        if named:
            columns, place = named, 0
            continue
        values = [value.strip() for value in line.split(",")]
        if columns and len(values) == len(columns) and any(values):
            yield place, dict(zip(columns, values, strict=True))
            place += 1
        elif line.strip():
            columns = []


def _columns(line: str) -> list[str]:
    """Return the columns that a command or a header names; [] where the line is neither."""
    command = _COMMAND.search(line[:LONGEST])
    header = _HEADER.match(line) if ("," in line or "." in line) and len(line) < LONGEST else None
    if command is None and header is None:
        return []
    names = (command[1] if command else header[1]).split(",")  # type: ignore[index]
    columns = [_SAME.get(name, name) for name in (re.sub(r" \[.*", "", part.strip()) for part in names)]
    return columns[:MOST_COLUMNS] if _KNOWN & set(columns) else []


def _gpu(index: int, row: dict[str, str]) -> Gpu:
    def value(name: str) -> str | None:
        found = row.get(name, "")
        return None if found in ("", "N/A") or found.startswith("[") else found

    def number(name: str) -> int | None:
        found = _number(value(name) or "")
        return None if found is None else int(found)

    def scaled(name: str, factor: float) -> Any:
        found = _number(value(name) or "")
        return None if found is None else found * factor

    address = value("pci.bus_id")
    pcie = Pcie(
        generation=number("pcie.link.gen.current"),
        generation_max=number("pcie.link.gen.max"),
        width=number("pcie.link.width.current"),
        width_max=number("pcie.link.width.max"),
    )
    total, used = scaled("memory.total", MIB), scaled("memory.used", MIB)
    gpu = Gpu(
        id=f"GPU{index}",
        index=index,
        name=value("name"),
        uuid=value("uuid"),
        pcie=None if pcie == Pcie() else pcie,
        compute_mode=value("compute_mode"),
        compute_capability=value("compute_cap"),
        utilization=scaled("utilization.gpu", 0.01),
        power=scaled("power.draw", 1.0),
        memory=None if total is None else int(total),
        memory_used=None if used is None else int(used),
    )
    is_address = address is not None and re.fullmatch(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9]", address)
    return replace(gpu, bus_id=pci_address(address)) if address and is_address else gpu


def _number(text: str) -> float | None:
    """Read a number with its unit or without: 100 %, 143771 MiB, 118.2 W."""
    match = re.fullmatch(r"(\d{1,10}(?:\.\d{1,6})?)(?: ?(?:%|MiB|W|MHz|C))?", text)
    return float(match[1]) if match else None

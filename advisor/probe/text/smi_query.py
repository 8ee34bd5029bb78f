"""Read what `nvidia-smi -q` prints of each GPU, whole or in sections (-d), by drivers from 390 on."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from advisor.probe.text.paste import plain
from advisor.rules.machine import Gpu, Host, Machine, MigInstance, Pcie, Process, Software, Unknown
from advisor.rules.pci import pci_address

MIB = 2**20
MOST_GPUS = 512
DEEPEST = 8  # headings above a value
NO_FAULT = ("Idle", "Applications Clocks Setting")  # of the reasons why clocks are not at their highest
REASONS = ("Clocks Event Reasons", "Clocks Throttle Reasons")  # the latter before driver 535
POWER = (  # the last two of older drivers
    ("GPU Power Readings", "Instantaneous Power Draw"),
    ("GPU Power Readings", "Power Draw"),
    ("Power Readings", "Power Draw"),
)

_GPU = re.compile(
    r"^(.{0,80}?)\bGPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])[ \t\r]*$", re.MULTILINE
)
_ADDRESS = re.compile(r"GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:")
_VERSION = re.compile(r"\b(Driver|CUDA) Version\s{1,60}:\s{1,4}(\d{1,4}(?:\.\d{1,4})+)")
_ATTACHED = re.compile(r"\bAttached GPUs\s{1,60}:\s{1,4}(\d{1,4})\b")


class Fact(NamedTuple):
    path: tuple[str, ...]  # the headings above
    key: str
    value: str


def read_smi_query(text: str, source: str) -> Machine | None:
    """Build a machine of the GPUs in a text, in their order; None where it holds none."""
    if not _ADDRESS.search(text):
        return None
    text = plain(text)
    if "\n" in text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]  # the last value may be cut
    blocks = _blocks(text)
    if not blocks:
        return None
    gpus = [_gpu(index, address, list(_facts(lines))) for index, (address, lines) in enumerate(blocks.items())]
    versions = dict(_VERSION.findall(text))
    attached = _ATTACHED.search(text)
    gaps = []
    if attached and int(attached[1]) > len(gpus):
        gaps.append(f"the text holds {len(gpus)} of {attached[1]} GPUs; their numbers may be others")
    return Machine(
        gpus=tuple(gpu for gpu, _ in gpus),
        host=Host(virtual=True if any(virtual for _, virtual in gpus) else None),
        software=Software(driver=versions.get("Driver"), cuda_driver=versions.get("CUDA")),
        unknown=tuple(Unknown(what="gpus", why=why) for why in gaps),
        source=source,
    )


def _blocks(text: str) -> dict[str, list[str]]:
    """Return the lines of each GPU by its address, without what stands before each line, such as a quote's sign."""
    heads = list(_GPU.finditer(text))[:MOST_GPUS]
    ends = [head.start() for head in heads[1:]] + [len(text)]
    blocks: dict[str, list[str]] = {}
    for head, end in zip(heads, ends, strict=False):
        lines = text[head.end() : end].splitlines()
        blocks.setdefault(pci_address(head[2]), [line.removeprefix(head[1]).expandtabs(8) for line in lines])
    return blocks


def _facts(lines: Sequence[str]) -> Iterator[Fact]:
    """Yield the values of a block with the headings above them, which are less indented."""
    above: list[tuple[int, str]] = []
    for line in lines:
        key, colon, value = (part.strip() for part in line.partition(" :"))
        if not key:
            continue
        indent = len(line) - len(line.lstrip())
        while above and above[-1][0] >= indent:
            above.pop()
        if colon:
            yield Fact(tuple(heading for _, heading in above), key, value)
        elif len(above) < DEEPEST:
            above.append((indent, key))


def _gpu(index: int, address: str, facts: Sequence[Fact]) -> tuple[Gpu, bool]:
    """Describe a GPU, and say whether it is given to a virtual machine."""
    at = {(*fact.path, fact.key): fact.value for fact in reversed(facts)}  # of two the first

    def value(*path: str) -> str | None:
        return _known(at.get(path))

    link = "PCI", "GPU Link Info"
    pcie = Pcie(
        generation=_number(value(*link, "PCIe Generation", "Current")),
        width=_number(value(*link, "Link Width", "Current"), "x"),
        generation_max=_number(value(*link, "PCIe Generation", "Max")),
        width_max=_number(value(*link, "Link Width", "Max"), "x"),
    )
    uuid, state = value("GPU UUID"), value("Fabric", "State")
    load = _number(value("Utilization", "Gpu") or value("Utilization", "GPU"), "[ ]%")
    ecc = value("ECC Mode", "Current") or value("Ecc Mode", "Current")  # the latter in older drivers
    gpu = Gpu(
        id=f"GPU{index}",
        index=index,
        name=value("Product Name"),
        memory=_bytes(value("FB Memory Usage", "Total")),
        memory_used=_bytes(value("FB Memory Usage", "Used")),
        compute_capability=value("CUDA Compute Capability"),
        pcie=None if pcie == Pcie() else pcie,
        uuid=uuid,
        bus_id=address,
        mig=_mig(facts, uuid) if value("MIG Mode", "Current") == "Enabled" else None,
        ecc=None if ecc is None else ecc == "Enabled",
        ecc_uncorrected=_uncorrected(facts),
        throttle=_throttle(facts),
        processes=_processes(facts),
        fabric_state=state.lower() if state else None,
        utilization=None if load is None else load / 100,
        compute_mode=value("Compute Mode"),
        power=next((watts for path in POWER if (watts := _watts(value(*path))) is not None), None),
    )
    return gpu, value("GPU Virtualization Mode", "Virtualization Mode") in ("Pass-Through", "VGPU")


def _uncorrected(facts: Sequence[Fact]) -> int | None:
    """Add up the errors since the driver was loaded: of SRAM and DRAM, in old drivers the total of double bits."""
    counts = [
        _number(fact.value)
        for fact in facts
        if (fact.path == ("ECC Errors", "Volatile") and "Uncorrectable" in fact.key)
        or (fact.path == ("ECC Errors", "Volatile", "Double Bit") and fact.key == "Total")
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _throttle(facts: Sequence[Fact]) -> tuple[str, ...] | None:
    reasons = [f for f in facts if f.path[:1] in [(r,) for r in REASONS] and f.value in ("Active", "Not Active")]
    if not reasons:
        return None
    return tuple(fact.key for fact in reasons if fact.value == "Active" and fact.key not in NO_FAULT)


def _processes(facts: Sequence[Fact]) -> tuple[Process, ...] | None:
    if any(fact.path == () and fact.key == "Processes" and fact.value == "None" for fact in facts):
        return ()
    return (
        tuple(
            Process(pid=pid, memory=_bytes(entry.get("Used GPU Memory")), name=_known(entry.get("Name")))
            for entry in _entries(facts, "Processes", "Process ID")
            if (pid := _number(entry["Process ID"])) is not None
        )
        or None
    )


def _mig(facts: Sequence[Fact], uuid: str | None) -> tuple[MigInstance, ...] | None:
    """List the instances, named as CUDA did before driver 470, since their own UUIDs are not printed."""
    parts = []
    for entry in _entries(facts, "MIG Device", "Index"):
        whole, part = _number(entry.get("GPU Instance ID")), _number(entry.get("Compute Instance ID"))
        memory = entry.get("FB Memory Usage/Total") or entry.get("Shared FB Memory Usage/Total")
        if uuid is None or whole is None or part is None:
            return None
        name = f"MIG-{uuid}/{whole}/{part}"
        parts.append(MigInstance(uuid=name, memory=_bytes(memory), gpu_instance=whole, compute_instance=part))
    return tuple(parts)


def _entries(facts: Sequence[Fact], heading: str, first: str) -> list[dict[str, str]]:
    """Collect what stands below a heading, a new entry from each `first` on."""
    entries: list[dict[str, str]] = []
    for fact in facts:
        if fact.path[:1] != (heading,):
            continue
        if fact.key == first:
            entries.append({})
        if entries:
            entries[-1].setdefault("/".join((*fact.path[1:], fact.key)), fact.value)
    return entries


def _known(value: str | None) -> str | None:
    return (
        None
        if value in (None, "", "N/A", "None") or value.startswith(("Requested functionality", "Unknown", "["))
        else value
    )


def _number(value: str | None, unit: str = "") -> int | None:
    """Read a number of at most ten digits: 5, 16x."""
    match = re.fullmatch(rf"(\d{{1,10}}){unit}", value or "")
    return int(match[1]) if match else None


def _bytes(value: str | None) -> int | None:
    """Read `143771 MiB`."""
    number = _number(value, r"[ ](?:MiB|MB)")
    return None if number is None else number * MIB


def _watts(value: str | None) -> float | None:
    """Read `118.20 W`."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,4})?) W", value or "")
    return float(match[1]) if match else None

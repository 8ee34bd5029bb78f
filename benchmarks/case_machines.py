"""The machine that a case describes: its `inputs` where they hold texts that we read, else its `hardware` in words."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from advisor.probe.load import load_machine
from advisor.probe.merge import merge
from advisor.probe.steering import steers
from advisor.probe.text.readers import machine_from_text
from advisor.rules.errors import AdvisorError
from advisor.rules.hardware import GIB, gpu_model
from advisor.rules.machine import Machine
from advisor.rules.plan import Assumption

USUAL_GPU = "a100 80gb"  # where a case names none
USUAL_GPUS = {1: 8, 2: 4}  # per host by number of hosts, where a case names none
SLOW_ETHERNET = 1  # Gb/s, what a case means that calls it slow and gives no rate
RDMA = {"ib": "{gpus}x200", "efa": "4x100", "roce": "100"}  # where a case gives no rate
OLD_RDMA = "ib 100"  # the same for hosts of GPUs older than Ampere
SHOWN_BY = {"driver": "cat /proc/driver/nvidia/version"}  # the command whose answer a label means
LABEL = 0.08  # how far a driver's figure may lie below the label's GiB

_LABELLED = re.compile(r"(\d+)\s*gi?b\b", re.IGNORECASE)
_RATE = re.compile(r"(?:(\d+)\s*x\s*)?(\d+(?:\.\d+)?)\s*(?:gbit/s|gbit|gb/s|gbps|gbe|g)\b", re.IGNORECASE)
_PCIE = re.compile(r"\b(?:pcie\s*)?gen\s*(\d)(?:\s*x\s*(\d+))?|\bpcie\s*(\d)(?:\.0)?(?:\s*x\s*(\d+))?", re.IGNORECASE)
_KINDS = (
    ("roce", r"\broce\b"),
    ("efa", r"\befa\b"),
    ("ib", r"\binfiniband\b|\bib\b|\b[hnex]dr\b|(?:cluster|healthy|data-?cent(?:re|er)) (?:fabric|network)"),
    ("eth", r"ethernet|\d\s*gbe\b|\btcp\b"),
)


def machine_of(hardware: dict[str, Any], inputs: dict[str, Any]) -> tuple[Machine, list[Assumption]]:
    """Build the machine of a case, with what had to be assumed."""
    assumed: list[Assumption] = []
    name = gpu_name(hardware, assumed)
    machine = _from_inputs(hardware, inputs, name) or _described(hardware, name, assumed)
    wanted = hardware.get("memory_gib")
    if isinstance(wanted, int | float) and any(_differs(gpu.memory or 0, wanted) for gpu in machine.gpus):
        memory = int(wanted * GIB)
        assumed.append(Assumption(what="memory", value=memory, why=f"the case says {wanted} GiB of a {name}"))
        machine = replace(machine, gpus=tuple(replace(gpu, memory=memory) for gpu in machine.gpus))
    machine = with_inputs(_with_words(machine, hardware), inputs)
    variables: dict[str, str] = {name: str(value) for name, value in inputs.items() if steers(name)}
    for label, found in inputs.items():
        variables |= dict(found) if label.startswith("env") else {}
    return replace(machine, environment=machine.environment | variables), assumed


def _with_words(machine: Machine, hardware: dict[str, Any]) -> Machine:
    """Add what the words say besides: a container, CUDA's multi-process service."""
    words = str(hardware.get("other", ""))
    host = replace(machine.host, container=True) if "container" in hardware else machine.host
    software = replace(machine.software, mps=True) if "MPS" in words else machine.software
    return replace(machine, host=host, software=software)


def with_inputs(machine: Machine, inputs: dict[str, Any]) -> Machine:
    """Add what the other texts tell, each given as a terminal shows it: its label as the command, then the answer."""
    parts = []
    for label, text in inputs.items():
        command = SHOWN_BY.get(label) or re.sub(r"^node \w+ ", "", label)
        with suppress(AdvisorError):
            parts.append(machine_from_text(f"$ {command}\n{text}\n", f"input {label}"))
    if not parts:
        return machine
    told = merge(parts)
    merged = merge([machine, told])
    if len(merged.gpus) > len(machine.gpus):  # a text of other GPUs than the case names
        merged = merge([machine, replace(told, gpus=(), links=(), peer_access=(), distances=())])
    # what our tables say of the GPU that the words name is no second source
    return replace(merged, source=machine.source, contradictions=machine.contradictions + told.contradictions)


def gpu_name(hardware: dict[str, Any], assumed: list[Assumption]) -> str:
    """Return a name that our tables know: that of the first alternative, or that of a GPU with as much memory."""
    text = str(hardware.get("gpu", ""))
    label = _LABELLED.search(text)
    memory = hardware.get("memory_gib") or (int(label[1]) if label else None)
    for alternative in re.split(r"\s*/\s*|\s+or\s+", re.sub(r"\(.*?\)", "", text)):
        words = alternative.replace("-class", "").split()
        for length in range(len(words), 0, -1):
            name = " ".join(words[:length])
            known = [found for found in (name, f"{name} {memory}gb") if gpu_model(found) is not None]
            if known:
                return next((found for found in known if memory and not _differs(_memory(found), memory)), known[0])
    name = "a100 40gb" if memory and memory <= 48 else USUAL_GPU
    assumed.append(Assumption(what="GPU", value=name, why=f"the case says {text or 'nothing'!r}"))
    return name


def count_of(value: Any, otherwise: int) -> int:
    """Read a count from a number or words: of `1 to 8` the last, of `8 (not stated)` the first."""
    if isinstance(value, int):
        return value
    found = [int(number) for number in re.findall(r"\d+", str(value or ""))]
    if not found:
        return otherwise
    return found[-1] if re.search(r"\d\s*(?:to|-)\s*\d", str(value)) else found[0]


def _from_inputs(hardware: dict[str, Any], inputs: dict[str, Any], gpu: str) -> Machine | None:
    """Read the texts of which we read a machine with GPUs; None unless they tell of all GPUs of a host, and links."""
    texts = [text for text in inputs.values() if isinstance(text, str) and _has_gpus(text)]
    if not texts:
        return None
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{index}.txt" for index in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text)
        for sources in (files, files[:1]):
            for name in (gpu, None):
                try:
                    machine = load_machine(*map(str, sources), gpu=name)
                except AdvisorError:
                    continue
                if len(machine.gpus) == hardware.get("gpus_per_node") and (machine.links or len(machine.gpus) == 1):
                    return replace(machine, nodes=count_of(hardware.get("nodes"), 1), source="inputs of the case")
    return None


def _has_gpus(text: str) -> bool:
    try:
        return bool(machine_from_text(text, "a case").gpus)
    except AdvisorError:
        return False


def _described(hardware: dict[str, Any], name: str, assumed: list[Assumption]) -> Machine:
    nodes = count_of(hardware.get("nodes"), 1 if "nodes" not in hardware else 2)
    gpus = count_of(hardware.get("gpus_per_node"), USUAL_GPUS.get(nodes, 8))
    network = (
        network_words(str(hardware.get("inter_link") or hardware.get("nics", "")), gpus, name) if nodes > 1 else ""
    )
    ram = hardware.get("host_ram_gib")
    rest = [network, f"{ram}GiB ram" if isinstance(ram, int | float) else ""]
    refused = AdvisorError("no description", "")
    for links in link_words(hardware):
        hosts = f"{nodes} nodes of " if nodes > 1 else ""
        words = ", ".join(part for part in (f"{hosts}{gpus}x {name} {links}".strip(), *rest) if part)
        try:
            machine = load_machine(words)
        except AdvisorError as error:
            refused = error
            continue
        assumed.append(Assumption(what="machine", value=words, why="the words of the case"))
        return machine
    raise refused


def link_words(hardware: dict[str, Any]) -> Iterator[str]:
    """Yield descriptions of the links inside a host, the most exact first; what does not suit the GPU is refused."""
    text = str(hardware.get("intra_link", "")).lower()
    slots = {match.groups() for match in _PCIE.finditer(text)}
    slot = ""
    if len(slots) == 1:
        ((generation, width, other, lanes),) = slots
        slot = f"pcie{generation or other}{f'x{width or lanes}' if width or lanes else ''}"
    extra = [slot, "2 sockets" if re.search(r"two (?:cpu )?sockets|dual.socket|2 sockets", text) else ""]
    extra.append("no p2p" if "without p2p" in text else "")
    fabric = ["nvswitch"] if "nvswitch" in text else ["pairs"] if re.search("bridge|pair", text) else [""]
    if "nvlink" in text and fabric == [""]:
        fabric = ["", "pairs"]
    if "pcie" in text and (re.search(r"not stated|no nvlink|without nvlink", text) or "nvlink" not in text):
        fabric = ["no nvlink", ""]
    for found in [*fabric, ""]:
        for more in (extra, []):
            yield ", ".join(part for part in (found, *more) if part)


def network_words(text: str, gpus: int, name: str) -> str:
    """Describe the network between hosts; empty where a case leaves it open: then our own assumption holds.

    A fabric that is healthy or a data centre's, without a name, is InfiniBand: one adapter of 200 Gb/s for each GPU,
    before Ampere one of 100 for the host.
    """
    lower = re.sub(r"\b(?:no|without|until) infiniband\b.*", "", text.lower())
    if "not stated" in lower:
        return ""
    kind = next((kind for kind, pattern in _KINDS if re.search(pattern, lower)), None)
    rate = _RATE.search(lower)
    if kind is None or ("script" in lower and rate is None):
        return ""
    if rate is not None:
        return f"{kind} {f'{rate[1]}x' if rate[1] else ''}{rate[2]}"
    if kind == "eth":
        return f"eth {SLOW_ETHERNET}" if "slow" in lower else ""
    model = gpu_model(name)
    old = model is not None and float(model.compute_capability or 8) < 8
    return OLD_RDMA if old and kind == "ib" else f"{kind} {RDMA[kind].format(gpus=gpus)}"


def _differs(memory: int, label: float) -> bool:
    return not 1 - LABEL <= memory / (label * GIB) <= 1 + LABEL


def _memory(name: str) -> int:
    model = gpu_model(name)
    return model.memory if model else 0

"""What data sheets say about GPUs and the links between sockets: `hardware.toml`, each number with its source."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from advisor.rules.machine import Value

MIB = 1024**2
GIB = 1024**3

_NOISE = frozenset({"nvidia", "tesla", "geforce", "amd", "instinct", "gpu", "oam", "generation", "edition"})
_MEMORY_TYPE = re.compile(r"hbm\d\w*")
_WORD = re.compile(r"[a-z0-9]+")


class GpuModel(Value, frozen=True, kw_only=True):
    """One kind of GPU as its data sheet describes it."""

    key: str
    name: str  # as NVML prints it
    memory: int  # bytes, as the driver reports them
    memory_bandwidth: float  # bytes per second
    architecture: str
    compute_capability: str | None = None  # None on AMD parts
    flops_bf16: float | None = None  # FLOP per second, dense, fp32 accumulation; None where the part has no such units
    flops_fp16: float | None = None
    flops_tf32: float | None = None
    flops_fp32: float
    nvlink_links: int = 0  # of one GPU, over all its peers
    nvlink_generation: int | None = None
    link_rate: float | None = None  # bytes per second of one NVLink or Infinity Fabric link, one direction
    pcie_generation: int | None = None
    pcie_width: int | None = None  # lanes
    pcie_p2p: bool  # the stock driver lets two such GPUs exchange data over PCIe
    source: str


@cache
def gpu_model(name: str) -> GpuModel | None:
    """Find a GPU by what NVML calls it or by what people type; None rather than a similar part.

    "NVIDIA A100-SXM4-80GB", "a100-80", "rtx3090" and "3090 24gb" are known; "RTX 4090 Laptop GPU" and MIG slices not.
    A name that leaves the memory or the form open means the smaller memory and SXM: "a100" is the 40 GB SXM part.
    """
    words = _words(name)
    known = _gpus_by_words()
    if words in known:
        return known[words]
    for word in filter(str.isdecimal, words):
        model = known.get(words - {word})
        if model is not None and abs(model.memory / GIB - int(word)) < 2:  # labels round, 22.5 GiB is sold as 24 GB
            return model
    return None


def gpu_names() -> tuple[str, ...]:
    """The short names that `gpu_model` knows, for hints."""
    return tuple(_gpus())


def pcie_bandwidth(generation: int, width: int) -> float | None:
    """Bytes per second of a PCIe link, one direction, after line coding: generation 4 x16 is 31.5e9."""
    lane: float | None = _table()["pcie"]["lane"].get(str(generation))
    return None if lane is None else lane * width


def inter_socket_bandwidth(cpu: str | None, family: int | None = None, model: int | None = None) -> float | None:
    """Bytes per second between GPUs of two sockets, one direction; None if the CPU is not known.

    cpu: its name, or the vendor's. family, model: the numbers that tell Intel's generations where the name does not.
    """
    for entry in _table()["inter_socket"]["rates"]:
        if re.search(entry["cpu"], cpu or "", re.IGNORECASE):
            rate: float = entry["rate"]
            return rate
    if family != 6 or model is None or "intel" not in (cpu or "").lower():
        return None
    generations = _table()["inter_socket"]["models"]["intel"]
    return next((float(entry["rate"]) for entry in generations if model >= entry["from"]), None)


def pci_name(vendor: str, device: str) -> str | None:
    """Name a GPU by its PCI ids, four hexadecimal digits each: ("10de", "2335") is an NVIDIA H200."""
    name: str | None = _table()["pci_ids"]["names"].get(f"{vendor}:{device}")
    return name


def assumed_inter_socket_bandwidth() -> float:
    """What to take between sockets of an unknown CPU, bytes per second, one direction."""
    rate: float = _table()["inter_socket"]["assumed"]
    return rate


def _words(name: str) -> frozenset[str]:
    """Split a name into the words that tell parts apart: "A100-SXM4-80GB" and "a100 80g sxm" are the same."""
    text = re.sub(r"\b(rtx|gtx)(?=a?\d)", r"\1 ", name.lower())
    words = (w for w in _WORD.findall(text) if w not in _NOISE and not _MEMORY_TYPE.fullmatch(w))
    return frozenset(re.sub(r"^(\d+)g(i?b)?$", r"\1", re.sub(r"^sxm\d$", "sxm", w)) for w in words)


@cache
def _table() -> dict[str, Any]:
    content: dict[str, Any] = msgspec.toml.decode((Path(__file__).parent / "hardware.toml").read_bytes())
    return content


@cache
def _gpus() -> dict[str, GpuModel]:
    return {row["key"]: _gpu(row) for row in _table()["gpu"]}


def _gpu(row: dict[str, Any]) -> GpuModel:
    facts = {key: value for key, value in row.items() if key not in ("names", "memory_mib", "flops")}
    facts |= {f"flops_{dtype}": value for dtype, value in row["flops"].items()}
    facts["memory"] = row["memory_mib"] * MIB
    return msgspec.convert(facts, GpuModel)


@cache
def _gpus_by_words() -> dict[frozenset[str], GpuModel]:
    known: dict[frozenset[str], GpuModel] = {}
    for row in _table()["gpu"]:
        for name in (row["key"], *row["names"]):
            known.setdefault(_words(name), _gpus()[row["key"]])
    return known

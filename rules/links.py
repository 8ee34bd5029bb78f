"""What a link can carry by its data sheets: codes of `nvidia-smi topo -m` to kinds, kinds to bytes per second."""

import re
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from advisor.rules.hardware import (
    GpuModel,
    assumed_inter_socket_bandwidth,
    gpu_model,
    inter_socket_bandwidth,
    pcie_bandwidth,
)
from advisor.rules.machine import Gpu, Host, Link, LinkKind, Machine, Nic, Pcie, Source, Unknown

_KINDS: dict[str, LinkKind] = {
    "XGMI": "xgmi",
    "C2C": "c2c",
    "PIX": "pcie-switch",
    "PXB": "pcie-switches",
    "PHB": "host-bridge",
    "PCIE": "host-bridge",  # rocm-smi does not say which kind of PCIe path
    "NODE": "numa-node",
    "SYS": "inter-socket",
    "SOC": "inter-socket",
    "HOST": "host-memory",
    "NET": "network",
}

# Bytes per second of one NVLink, one direction, as `nvidia-smi nvlink -s` prints it, for GPUs that the table lacks.
_NVLINK_RATES = {"6.0": 20e9, "7.0": 25.781e9, "7.5": 25.781e9, "8.0": 25e9, "8.6": 14.062e9, "9.0": 26.562e9}
_NVLINK5_RATE = 53.125e9

ASSUMED_NVLINK_RATE = 25e9  # bytes per second of one link, for a GPU of which nothing is known: V100 and A100
ASSUMED_PCIE = 15.75e9  # generation 3 x16

WHAT = "link bandwidths"  # of the entry in `Machine.unknown`

BUSY = 0.1  # utilization from which a GPU's link runs at the generation it can; idle ones drop to 1

COPY_EFFICIENCY = 0.87  # of the PCIe rate, by large pinned copies: 55 of 63e9 B/s measured on an H200, both directions


def kind_of_code(code: str) -> LinkKind | None:
    """Name the kind of a matrix cell: NV12 is nvlink, PIX pcie-switch; None for X and for what no source prints."""
    text = code.strip().upper()
    return "nvlink" if re.fullmatch(r"NV\d+", text) else _KINDS.get(text)


def nvlink_count(code: str) -> int:
    """How many NVLinks a cell stands for: 12 for NV12, 0 for anything else."""
    match = re.fullmatch(r"NV(\d+)", code.strip().upper())
    return int(match[1]) if match else 0


def nvlink_rate(gpu: Gpu) -> float | None:
    """Bytes per second of one NVLink of this GPU, one direction."""
    model = _model(gpu)
    if model is not None:
        return model.link_rate
    capability = gpu.compute_capability
    if capability is not None and capability.startswith("10."):
        return _NVLINK5_RATE
    return _NVLINK_RATES.get(capability or "")


def link_bandwidth(link: Link, a: Gpu | Nic, b: Gpu | Nic, host: Host) -> tuple[float | None, Source | None]:
    """Say what this pair alone can move, bytes per second in one direction, by the data sheets of both ends.

    NVLink: number of links x rate of one. PCIe: the slower of both ends' slots. Between sockets: what the
    CPU's link lets through, never above PCIe.
    """
    if link.kind in ("nvlink", "xgmi"):
        rates = [nvlink_rate(end) for end in (a, b) if isinstance(end, Gpu)]
        rate = _lowest(rates) if rates and None not in rates else None
        count = nvlink_count(link.code) if link.kind == "nvlink" else 1
        return (None, None) if rate is None else (count * rate, "data sheet")
    if link.kind in ("c2c", "host-memory", "network"):
        return None, None
    pcie = _lowest(end.bandwidth if isinstance(end, Nic) else attachment(end) for end in (a, b))
    if pcie is None or link.kind != "inter-socket":
        return (None, None) if pcie is None else (pcie, "data sheet")
    between = inter_socket_bandwidth(host.cpu or host.cpu_vendor, host.cpu_family, host.cpu_model_number)
    if between is None:
        return min(pcie, assumed_inter_socket_bandwidth()), "assumed"
    return min(pcie, between), "data sheet"


def attachment(gpu: Gpu) -> float | None:
    """Bytes per second between a GPU and its PCIe slot, one direction.

    By the generation that the link can do, and by the current width, where a narrow slot shows.
    """
    model, pcie = _model(gpu), gpu.pcie or Pcie()
    generation = generation_under_load(gpu)
    width = pcie.width or pcie.width_max or (model.pcie_width if model else None)
    return pcie_bandwidth(generation, width) if generation and width else None


def generation_under_load(gpu: Gpu) -> int | None:
    """Return the PCIe generation that a GPU's link can do.

    The current one of a GPU that was seen at work; an idle link drops to generation 1, then the greatest counts.
    """
    model, pcie = _model(gpu), gpu.pcie or Pcie()
    if pcie.generation and (gpu.utilization or 0) >= BUSY:
        return pcie.generation
    return pcie.generation_max or (model.pcie_generation if model else pcie.generation)


def host_bandwidth(gpu: Gpu) -> float | None:
    """Bytes per second of a copy between a GPU and pinned host memory."""
    pcie = attachment(gpu)
    return None if pcie is None else COPY_EFFICIENCY * pcie


def with_link_bandwidths(machine: Machine) -> Machine:
    """Fill the links that have no bandwidth yet, and say why where the data sheets cannot."""
    ends: dict[str, Gpu | Nic] = {gpu.id: gpu for gpu in machine.gpus}
    ends |= {nic.id: nic for nic in machine.nics}
    links = tuple(_filled(link, ends, machine.host) for link in machine.links)
    unknown = [entry for entry in machine.unknown if entry.what != WHAT]
    return replace(machine, links=links, unknown=(*unknown, *_why_missing(machine, links)))


def _filled(link: Link, ends: dict[str, Gpu | Nic], host: Host) -> Link:
    if link.bandwidth is not None or link.a not in ends or link.b not in ends:
        return link
    bandwidth, source = link_bandwidth(link, ends[link.a], ends[link.b], host)
    return replace(link, bandwidth=bandwidth, bandwidth_source=source)


def _why_missing(machine: Machine, links: Iterable[Link]) -> Iterator[Unknown]:
    gpus = {gpu.id: gpu for gpu in machine.gpus}
    missing = {end for link in links if link.bandwidth is None for end in (link.a, link.b) if end in gpus}
    names = {gpus[gpu_id].name for gpu_id in missing}
    if None in names:
        yield Unknown(what=WHAT, why="the text names no GPU; add --gpu NAME")
    elif names:
        listed = ", ".join(sorted(name for name in names if name))
        yield Unknown(what=WHAT, why=f"no data sheet here gives the links of {listed}")


def _model(gpu: Gpu) -> GpuModel | None:
    return gpu_model(gpu.name) if gpu.name else None


def _lowest(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def with_assumed_bandwidths(machine: Machine) -> Machine:
    """Fill the GPU links of which nothing is known with the slowest that is common, marked as assumed."""
    gpus = {gpu.id for gpu in machine.gpus}
    links = tuple(
        replace(link, bandwidth=_assumed(link), bandwidth_source="assumed")
        if link.bandwidth is None and {link.a, link.b} <= gpus
        else link
        for link in machine.links
    )
    return replace(machine, links=links)


def _assumed(link: Link) -> float:
    if link.kind == "nvlink":
        return nvlink_count(link.code) * ASSUMED_NVLINK_RATE
    return min(ASSUMED_PCIE, assumed_inter_socket_bandwidth()) if link.kind == "inter-socket" else ASSUMED_PCIE

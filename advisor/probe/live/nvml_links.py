"""Derive the GPU links from NVML, for containers that have the driver's library without the `nvidia-smi` program.

The codes are those of `nvidia-smi topo -m`: NV and a count where two GPUs share NVLinks, else what PCIe tells.
"""

from itertools import combinations
from typing import Any, NamedTuple

from advisor.probe.live.gpus import bus_id
from advisor.probe.live.nvml import query
from advisor.rules.links import kind_of_code
from advisor.rules.machine import Gpu, Link, Unknown

MAX_NVLINKS = 36  # NVML_NVLINK_MAX_LINKS
TO_SWITCH = 2  # nvmlIntNvLinkDeviceType_t
HIDDEN = "ffff:ff:ff.0"  # what a virtual machine shows as the remote end

# nvmlGpuTopologyLevel_t. 0, two GPUs of one board, is PIX to nvidia-smi as well.
ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


class Ends(NamedTuple):
    """Where the active NVLinks of one GPU lead (`nvidia-smi nvlink -s -R`)."""

    switch: int  # to an NVSwitch
    gpus: tuple[str, ...]  # bus ids of GPUs at the other end, one entry a link


def read_links(gpus: tuple[Gpu, ...]) -> tuple[tuple[Link, ...], tuple[Unknown, ...]]:
    """Find out how each two GPUs reach each other."""
    handles = {gpu.id: query("nvmlDeviceGetHandleByIndex", gpu.index).value for gpu in gpus}
    ends = {gpu.id: _ends(handles[gpu.id]) for gpu in gpus}
    links: list[Link] = []
    unknown: list[Unknown] = []
    for a, b in combinations(gpus, 2):
        code, why = _code(ends[a.id], ends[b.id], a, b)
        if why is None and code is None:
            level, why = query("nvmlDeviceGetTopologyCommonAncestor", handles[a.id], handles[b.id])
            code = ANCESTORS.get(level)
        kind = kind_of_code(code or "")
        if code is None or kind is None:
            unknown.append(
                Unknown(what=f"link {a.id}-{b.id}", why=why or "NVML names a kind of path that is new to us")
            )
        else:
            links.append(Link(a=a.id, b=b.id, code=code, kind=kind))
    return tuple(links), tuple(unknown)


def _code(ends_a: Ends, ends_b: Ends, a: Gpu, b: Gpu) -> tuple[str | None, str | None]:
    """Return the NVLink code of a pair, or why it can't be told; neither means that no NVLink joins the two."""
    if HIDDEN in ends_a.gpus and HIDDEN in ends_b.gpus:
        return None, "there are NVLinks, but this virtual machine hides where they lead"
    direct = max(ends_a.gpus.count(b.bus_id or ""), ends_b.gpus.count(a.bus_id or ""))
    count = direct or min(ends_a.switch, ends_b.switch)
    return (f"NV{count}" if count else None), None


def _ends(handle: Any) -> Ends:
    switch = 0
    gpus: list[str] = []
    for link in range(MAX_NVLINKS):
        if query("nvmlDeviceGetNvLinkState", handle, link).value != 1:
            continue
        if query("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link).value == TO_SWITCH:
            switch += 1
        else:
            gpus.append(bus_id(query("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)).value or HIDDEN)
    return Ends(switch, tuple(gpus))

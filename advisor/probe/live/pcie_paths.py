"""Ask NVML which PCIe path joins two GPUs, for containers that have the driver's library without `nvidia-smi`."""

from collections.abc import Iterable
from itertools import combinations

from advisor.probe.live.nvml import query
from advisor.rules.derived_links import nvlinks_between
from advisor.rules.links import kind_of_code
from advisor.rules.machine import Gpu, Link, Unknown

# nvmlGpuTopologyLevel_t. 0, two GPUs of one board, is PIX to nvidia-smi as well.
ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


def read_pcie_paths(gpus: Iterable[Gpu]) -> tuple[tuple[Link, ...], tuple[Unknown, ...]]:
    """Find the path of each two GPUs that no NVLink joins, with the codes of `nvidia-smi topo -m`."""
    links: list[Link] = []
    unknown: list[Unknown] = []
    for a, b in combinations(gpus, 2):
        if nvlinks_between(a, b) != 0:
            continue
        handles = [query("nvmlDeviceGetHandleByIndex", gpu.index).value for gpu in (a, b)]
        level, why, _ = query("nvmlDeviceGetTopologyCommonAncestor", *handles)
        code = ANCESTORS.get(level, "")
        kind = kind_of_code(code)
        if kind is not None:
            links.append(Link(a=a.id, b=b.id, code=code, kind=kind))
        else:
            why = why or f"NVML names a kind of path that is new to us: {level}"
            unknown.append(Unknown(what=f"link {a.id}-{b.id}", why=why))
    return tuple(links), tuple(unknown)

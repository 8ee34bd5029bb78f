"""Ask the driver which GPUs may reach each other's memory: `nvidia-smi topo -p2p`."""

from collections.abc import Iterable
from itertools import permutations
from typing import Literal

from advisor.probe.live.nvml import query
from advisor.rules.machine import Gpu, PeerAccess

# nvmlGpuP2PCapsIndex_t, and nvmlGpuP2PStatus_t in the words of nvidia-smi.
CAPABILITIES: tuple[Literal["read", "write", "nvlink", "atomics", "pcie"], ...] = (
    "read",
    "write",
    "nvlink",
    "atomics",
    "pcie",
)
STATUSES = ("OK", "CNS", "GNS", "TNS", "DR", "NS", "U")


def read_peer_access(gpus: Iterable[Gpu]) -> tuple[PeerAccess, ...]:
    """List what NVML answers for each ordered pair; nothing for what it does not answer."""
    handles = {gpu.id: query("nvmlDeviceGetHandleByIndex", gpu.index).value for gpu in gpus}
    found: list[PeerAccess] = []
    for number, capability in enumerate(CAPABILITIES):
        for a, b in permutations(handles, 2):
            status = query("nvmlDeviceGetP2PStatus", handles[a], handles[b], number).value
            if status is not None:
                word = STATUSES[status] if status in range(len(STATUSES)) else "U"
                found.append(PeerAccess(a=a, b=b, capability=capability, status=word))
    return tuple(found)

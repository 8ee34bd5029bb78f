"""List the MIG instances that a GPU is cut into: `nvidia-smi -L`."""

import re
from typing import Any

from advisor.probe.live.nvml import query
from advisor.rules.machine import MigInstance

WHOLE = (
    "MIG is on and the GPU is listed whole; turn it off, `nvidia-smi -mig 0`, or choose by CUDA_VISIBLE_DEVICES=MIG-..."
)


def read_mig(handle: Any) -> tuple[MigInstance, ...] | None:
    """Return the instances of a GPU in MIG mode, () before any is made; None where the GPU is whole."""
    mode = query("nvmlDeviceGetMigMode", handle).value
    if not mode or mode[0] == 0:
        return None
    count = query("nvmlDeviceGetMaxMigDeviceCount", handle).value or 0
    parts = (query("nvmlDeviceGetMigDeviceHandleByIndex", handle, number).value for number in range(count))
    return tuple(_instance(part, uuid) for part in parts if (uuid := _uuid(part)) is not None)


def _uuid(part: Any) -> str | None:
    uuid: str | None = None if part is None else query("nvmlDeviceGetUUID", part).value
    return uuid


def _instance(part: Any, uuid: str) -> MigInstance:
    name = query("nvmlDeviceGetName", part).value  # NVIDIA A100-SXM4-40GB MIG 3g.20gb
    profile = re.search(r"\bMIG (\S+)$", name or "")
    memory = query("nvmlDeviceGetMemoryInfo", part).value
    return MigInstance(
        uuid=uuid,
        name=profile[1] if profile else name,
        memory=None if memory is None else int(memory.total),
        gpu_instance=query("nvmlDeviceGetGpuInstanceId", part).value,
        compute_instance=query("nvmlDeviceGetComputeInstanceId", part).value,
    )

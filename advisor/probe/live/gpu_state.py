"""Read what is the matter with a GPU now: memory errors, clocks held down, other processes, the NVSwitch fabric.

What a kind of GPU does not have, such as a fabric on a PCIe card, stays unknown without a word.
"""

from ctypes import byref
from typing import Any

from msgspec import structs

from advisor.probe.live.nvml import Answer, query, record
from advisor.rules.machine import Gpu, Process, Unknown

UNCORRECTED, SINCE_START = 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t

# nvmlClocksEventReasons, in the words of `nvidia-smi -q -d PERFORMANCE`. An idle GPU (1) is no fault.
THROTTLE = {
    0x2: "Applications Clocks Setting",
    0x4: "SW Power Cap",
    0x8: "HW Slowdown",
    0x10: "Sync Boost",
    0x20: "SW Thermal Slowdown",
    0x40: "HW Thermal Slowdown",
    0x80: "HW Power Brake Slowdown",
    0x100: "Display Clock Setting",
}
COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}  # nvmlComputeMode_t
FABRIC = {1: "not started", 2: "in progress", 3: "completed"}  # nvmlGpuFabricState_t; 0 is not supported


def with_state(gpu: Gpu) -> tuple[Gpu, tuple[Unknown, ...]]:
    """Add the state of a GPU, with NVML's reasons for what it has but does not tell."""
    handle = query("nvmlDeviceGetHandleByIndex", gpu.index).value
    ecc = query("nvmlDeviceGetEccMode", handle)
    errors = query("nvmlDeviceGetTotalEccErrors", handle, UNCORRECTED, SINCE_START) if ecc.value else Answer()
    clocks = query("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if clocks.absent:  # drivers before 535
        clocks = query("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    processes = query("nvmlDeviceGetComputeRunningProcesses", handle)
    load = query("nvmlDeviceGetUtilizationRates", handle)
    power = query("nvmlDeviceGetPowerUsage", handle)  # milliwatts
    known = structs.replace(
        gpu,
        utilization=None if load.value is None else load.value.gpu / 100,
        compute_mode=COMPUTE_MODES.get(query("nvmlDeviceGetComputeMode", handle).value),
        power=None if power.value is None else power.value / 1000,
        ecc=bool(ecc.value[0]) if ecc.value else None,
        ecc_uncorrected=errors.value if ecc.value and ecc.value[0] else None,
        throttle=None if clocks.value is None else tuple(w for bit, w in THROTTLE.items() if clocks.value & bit),
        processes=None if processes.value is None else tuple(_process(entry) for entry in processes.value),
        fabric_state=_fabric_state(handle),
    )
    answers = {"ecc": ecc, "ecc_uncorrected": errors, "throttle": clocks, "processes": processes}
    return known, tuple(
        Unknown(what=f"{gpu.id}.{name}", why=answer.why)
        for name, answer in answers.items()
        if answer.why is not None and not answer.absent
    )


def _process(entry: Any) -> Process:
    """Describe a process; in a container its number is the host's, and its name may be hidden."""
    return Process(pid=entry.pid, memory=entry.usedGpuMemory, name=query("nvmlSystemGetProcessName", entry.pid).value)


def _fabric_state(handle: Any) -> str | None:
    """Return the state of the fabric, `Fabric` in `nvidia-smi -q`."""
    info = record("c_nvmlGpuFabricInfoV_t")
    if info is None or query("nvmlDeviceGetGpuFabricInfoV", handle, byref(info)).why is not None:
        return None
    return FABRIC.get(info.state)

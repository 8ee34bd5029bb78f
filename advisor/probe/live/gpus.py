"""Read each GPU's facts from NVML.

A virtual machine hides some, such as the NUMA node. Those stay unknown, with NVML's answer as the reason.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from advisor.probe.live.mig import WHOLE, read_mig
from advisor.probe.live.nvlinks import read_nvlinks
from advisor.probe.live.nvml import Answer, query
from advisor.probe.live.sysfs import ROOT, read
from advisor.rules.machine import Gpu, Pcie, Software, Unknown
from advisor.rules.pci import pci_address

MASK_WORDS = 32  # of 64 bits: room for 2,048 processors or NUMA nodes


def read_gpus() -> tuple[tuple[Gpu, ...], tuple[Unknown, ...]]:
    """List the GPUs that NVML sees, in the order of `nvidia-smi -L`."""
    count, why, _ = query("nvmlDeviceGetCount")
    if why is not None:
        return (), (Unknown(what="gpus", why=why),)
    gpus: list[Gpu] = []
    unknown: list[Unknown] = []
    for index in range(count):
        handle, why, _ = query("nvmlDeviceGetHandleByIndex", index)
        if why is not None:
            unknown.append(Unknown(what=f"GPU{index}", why=f"left out: {why}"))
            continue
        gpu, gaps = _read_gpu(index, handle)
        gpus.append(gpu)
        unknown.extend(gaps)
    return tuple(gpus), tuple(unknown)


def read_driver(root: Path = ROOT) -> tuple[Software, tuple[Unknown, ...]]:
    """Read the versions in the first lines of `nvidia-smi`: the driver's, and the newest CUDA it can run.

    Where NVML does not start, the kernel module still tells its version in /proc/driver/nvidia/version.
    """
    driver = query("nvmlSystemGetDriverVersion")
    cuda = _then(query("nvmlSystemGetCudaDriverVersion_v2"), lambda number: f"{number // 1000}.{number % 1000 // 10}")
    module = re.search(r"Module.*?\s(\d+(?:\.\d+)+)\s", read(root / "proc/driver/nvidia/version") or "")
    software = Software(driver=driver.value or (module and module[1]), cuda_driver=cuda.value)
    return software, _unknown({"software.driver": driver.why, "software.cuda_driver": cuda.why})


def _read_gpu(index: int, handle: Any) -> tuple[Gpu, tuple[Unknown, ...]]:
    """Read one GPU. The names in the comments are columns of `nvidia-smi --query-gpu`, where there is one."""
    memory = query("nvmlDeviceGetMemoryInfo", handle)
    facts = {
        "name": query("nvmlDeviceGetName", handle),  # name
        "memory": _then(memory, lambda m: int(m.total)),  # memory.total, there in MiB
        "memory_used": _then(memory, lambda m: int(m.used)),  # memory.used
        "compute_capability": _then(
            query("nvmlDeviceGetCudaComputeCapability", handle), lambda pair: f"{pair[0]}.{pair[1]}"
        ),  # compute_cap
        "uuid": query("nvmlDeviceGetUUID", handle),  # uuid
        "bus_id": _then(query("nvmlDeviceGetPciInfo", handle), _bus_id),  # pci.bus_id
        "cpu_affinity": _mask(query("nvmlDeviceGetCpuAffinity", handle, MASK_WORDS)),  # topo -m, CPU Affinity
        "numa": _then(_mask(query("nvmlDeviceGetMemoryAffinity", handle, MASK_WORDS, 0)), _one_or_all),  # NUMA Affinity
    }
    links = {
        "generation": query("nvmlDeviceGetCurrPcieLinkGeneration", handle),  # pcie.link.gen.current
        "width": query("nvmlDeviceGetCurrPcieLinkWidth", handle),  # pcie.link.width.current
        "generation_max": query("nvmlDeviceGetMaxPcieLinkGeneration", handle),  # pcie.link.gen.max
        "width_max": query("nvmlDeviceGetMaxPcieLinkWidth", handle),  # pcie.link.width.max
    }
    # The GPU's own memory as a NUMA node, as on Grace: elsewhere "not supported" means that there is none.
    own_node = query("nvmlDeviceGetNumaNodeId", handle).value
    gpu = Gpu(
        id=f"GPU{index}",
        index=index,
        gpu_numa_id=own_node,
        pcie=Pcie(**{name: answer.value for name, answer in links.items()}),
        nvlinks=read_nvlinks(handle),
        mig=read_mig(handle),
        **{name: answer.value for name, answer in facts.items()},
    )
    gaps = {f"{gpu.id}.{name}": answer.why for name, answer in facts.items()}
    gaps |= {f"{gpu.id}.pcie.{name}": answer.why for name, answer in links.items()}
    gaps[f"{gpu.id}.MIG instances"] = None if gpu.mig is None else WHOLE
    return gpu, _unknown(gaps)


def _bus_id(record: Any) -> str:
    return pci_address(record.busId.decode() if isinstance(record.busId, bytes) else str(record.busId))


def _mask(words: Answer) -> Answer:
    """Turn 64-bit words into the numbers of the bits set; an empty mask tells nothing."""
    numbers = _then(
        words, lambda w: tuple(64 * i + bit for i, word in enumerate(w) for bit in range(64) if word >> bit & 1)
    )
    return Answer(why="NVML: the mask is empty") if numbers.value == () else numbers


def _one_or_all(nodes: tuple[int, ...]) -> int | tuple[int, ...]:
    return nodes[0] if len(nodes) == 1 else nodes


def _then(answer: Answer, convert: Callable[[Any], Any]) -> Answer:
    return answer if answer.why is not None else Answer(convert(answer.value))


def _unknown(gaps: dict[str, str | None]) -> tuple[Unknown, ...]:
    return tuple(Unknown(what=what, why=why) for what, why in gaps.items() if why is not None)

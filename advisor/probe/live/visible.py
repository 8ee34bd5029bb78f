"""Tell the GPUs that this process may use from those that CUDA_VISIBLE_DEVICES, or a container, hides."""

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import structs

from advisor.probe.live.host import in_container
from advisor.probe.live.sysfs import ROOT, folders
from advisor.rules.machine import Gpu, Machine, MigInstance, Unknown
from advisor.rules.pci import pci_address

ONE_INSTANCE = (
    "CUDA shows a process one MIG instance, and NCCL joins no two of one GPU; the first of each GPU is listed"
)


def only_visible(machine: Machine) -> Machine:
    """Keep the GPUs that CUDA would show, in its order, under the ids and indices of `nvidia-smi`; say what is hidden.

    A MIG instance is listed as its GPU, with the instance's name, memory and UUID.
    """
    listed = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None or not machine.gpus:
        return machine
    if _order_matters(machine, listed):
        why = "CUDA counts mixed GPUs by speed, nvidia-smi by PCI address; `export CUDA_DEVICE_ORDER=PCI_BUS_ID`"
        machine = _noting(machine, f"GPUs meant by CUDA_VISIBLE_DEVICES={listed}", why)
    chosen = list(_chosen(machine.gpus, listed))
    kept: dict[str, Gpu] = {}
    for gpu in chosen:
        kept.setdefault(gpu.id, gpu)
    if len(kept) < len(chosen):
        machine = _noting(machine, f"{len(chosen) - len(kept)} more MIG instance(s)", ONE_INSTANCE)
    if hidden := len(machine.gpus) - len(kept):
        why = f"hidden by CUDA_VISIBLE_DEVICES={listed}; `unset CUDA_VISIBLE_DEVICES` shows them"
        machine = _noting(machine, f"{hidden} more GPU(s)", why)
    return _cut_to(machine, kept)


def with_withheld(machine: Machine, root: Path = ROOT) -> Machine:
    """Say how many GPUs the kernel knows that NVML does not list, as where a container was given 2 of 8."""
    listed = {gpu.bus_id for gpu in machine.gpus}
    if not machine.gpus or None in listed or any(gap.why.startswith("left out") for gap in machine.unknown):
        return machine
    there = {node.id for node in machine.pci if node.kind == "gpu"}
    there |= {pci_address(folder.name) for folder in folders(root / "proc/driver/nvidia/gpus")}
    withheld = sorted(there - listed)
    if not withheld:
        return machine
    why = f"the kernel knows {', '.join(withheld)}, NVML does not list them; see `dmesg | grep -i nvrm`"
    if in_container(root):
        given = machine.environment.get("NVIDIA_VISIBLE_DEVICES")
        why = "this container was not given them" + (f": NVIDIA_VISIBLE_DEVICES={given}" if given else "")
    return _noting(machine, f"{len(withheld)} more GPU(s)", why)


def _chosen(gpus: tuple[Gpu, ...], listed: str) -> Iterator[Gpu]:
    """Find the GPUs of a list such as "0,GPU-5a1b,MIG-77c0", as CUDA does: up to the first entry that means none."""
    seen: set[tuple[str, str | None]] = set()
    for entry in (part.strip() for part in listed.split(",")):
        found = list(_meant(gpus, entry))
        if len(found) != 1 or (found[0].id, found[0].uuid) in seen:
            return
        seen.add((found[0].id, found[0].uuid))
        yield found[0]


def _meant(gpus: tuple[Gpu, ...], entry: str) -> Iterator[Gpu]:
    """Yield the GPUs that an entry may mean: a number, the start of a UUID, or an instance by either of its names."""
    for gpu in gpus:
        uuid = gpu.uuid or ""
        if (entry.isdecimal() and gpu.index == int(entry)) or (entry.startswith("GPU-") and uuid.startswith(entry)):
            yield gpu
        elif entry.startswith("MIG-"):
            yield from (_as_gpu(gpu, part) for part in gpu.mig or () if _is_called(part, uuid, entry))


def _is_called(part: MigInstance, uuid: str, entry: str) -> bool:
    """Compare with MIG-<uuid>, which may be cut, and with the older MIG-GPU-<uuid of the GPU>/<instance>/<instance>."""
    old = re.fullmatch(r"MIG-(GPU-[^/]+)/(\d+)/(\d+)", entry)
    if old and uuid.startswith(old[1]) and (int(old[2]), int(old[3])) == (part.gpu_instance, part.compute_instance):
        return True
    return entry != "MIG-" and part.uuid.startswith(entry)


def _as_gpu(gpu: Gpu, part: MigInstance) -> Gpu:
    """Describe an instance as a GPU. The driver lets no instance reach another GPU, over NVLink or over PCIe."""
    return structs.replace(
        gpu,
        name=f"{gpu.name or 'GPU'} MIG {part.name or part.uuid}",
        memory=part.memory,
        memory_used=None,
        uuid=part.uuid,
        nvlinks=(),
        mig=None,
        processes=None,
    )


def _cut_to(machine: Machine, kept: dict[str, Gpu]) -> Machine:
    """Leave the other GPUs out, and of MIG instances the links and rights of the whole GPU."""
    whole = {gpu.id for gpu in machine.gpus if gpu.id in kept and kept[gpu.id].uuid == gpu.uuid}
    hidden = {gpu.id for gpu in machine.gpus} - set(kept)
    parts = set(kept) - whole
    return structs.replace(
        machine,
        gpus=tuple(kept.values()),
        links=tuple(
            link
            for link in machine.links
            if not {link.a, link.b} & hidden and not (link.kind == "nvlink" and {link.a, link.b} & parts)
        ),
        peer_access=tuple(right for right in machine.peer_access if {right.a, right.b} <= whole),
        unknown=tuple(gap for gap in machine.unknown if gap.what not in {f"{part}.MIG instances" for part in parts}),
    )


def _order_matters(machine: Machine, listed: str) -> bool:
    mixed = len({gpu.name for gpu in machine.gpus}) > 1
    by_number = listed.strip()[:1].isdecimal()
    return mixed and by_number and machine.environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"


def _noting(machine: Machine, what: str, why: str) -> Machine:
    return structs.replace(machine, unknown=(*machine.unknown, Unknown(what=what, why=why)))

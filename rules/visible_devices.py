"""What CUDA_VISIBLE_DEVICES lists, and what CUDA makes of it: which GPUs a process sees, in which order."""

import re
from collections.abc import Iterator

from msgspec.structs import replace

from advisor.rules.cpu_ranks import is_cpu
from advisor.rules.format import ids, plural
from advisor.rules.machine import Gpu, Machine, MigInstance, Unknown
from advisor.rules.plan import Assumption

NONE = ("", "-1", "NoDevFiles", "none", "void")
ONE_INSTANCE = (
    "CUDA shows a process one MIG instance, and NCCL joins no two of one GPU; the first of each GPU is listed"
)
ONE_EACH = ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND")

_HIDDEN = re.compile(r"(\d+) more GPU\(s\)")


def entries_of(machine: Machine) -> tuple[str, ...] | None:
    """Return the entries, () where they hide every GPU; None where it is not set, or lists instances of MIG."""
    listed = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None or listed.strip() == "all":
        return None
    entries = tuple(entry.strip() for entry in listed.split(","))
    if entries[0] in NONE:
        return ()
    return None if any(entry.startswith("MIG-") for entry in entries) else entries


def only_visible(machine: Machine) -> Machine:
    """Keep the GPUs that CUDA would show, in its order, under the ids and indices of `nvidia-smi`; say what is hidden.

    A MIG instance is listed as its GPU, with the instance's name, memory and UUID. A machine that was cut before stays
    as it is: the numbers are still those of `nvidia-smi`.
    """
    listed = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None or listed.strip() == "all" or not machine.gpus or any(is_cpu(gpu) for gpu in machine.gpus):
        return machine
    if any((gpu.uuid or "").startswith("MIG-") for gpu in machine.gpus):
        return machine
    if _order_matters(machine, listed):
        why = "CUDA counts mixed GPUs by speed, nvidia-smi by PCI address; `export CUDA_DEVICE_ORDER=PCI_BUS_ID`"
        machine = _noting(machine, f"GPUs meant by CUDA_VISIBLE_DEVICES={listed}", why)
    chosen = list(_chosen(machine.gpus, listed))
    if (named := _by_unknown_uuids(machine)) and not chosen:
        chosen = list(machine.gpus[:named])
        why = f"no UUIDs of the GPUs are known; the first {named} are taken"
        machine = _noting(machine, f"GPUs meant by CUDA_VISIBLE_DEVICES={listed}", why)
    kept: dict[str, Gpu] = {}
    for gpu in chosen:
        kept.setdefault(gpu.id, gpu)
    if len(kept) < len(chosen):
        machine = _noting(machine, f"{len(chosen) - len(kept)} more MIG instance(s)", ONE_INSTANCE)
    if hidden := len(machine.gpus) - len(kept):
        why = f"hidden by CUDA_VISIBLE_DEVICES={listed}; `unset CUDA_VISIBLE_DEVICES` shows them"
        machine = _noting(machine, f"{hidden} more GPU(s)", why)
    return _cut_to(machine, kept)


def for_planning(machine: Machine) -> tuple[Machine, tuple[Assumption, ...]]:
    """Return the machine with the GPUs that a job would see, and what that assumes.

    What one rank of a running job sees is not what a job sees, and where all GPUs are hidden (on the login node of a
    cluster) the plan is for those that are there.
    """
    listed = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None or _is_one_rank(machine):
        return machine, ()
    seen = only_visible(machine)
    if seen == machine or not seen.gpus:
        return machine, ()
    if len(seen.gpus) == len(machine.gpus):
        return seen, ()
    value = f"{ids([gpu.id for gpu in seen.gpus])} of {plural(len(machine.gpus), 'GPU')}"
    why = f"CUDA_VISIBLE_DEVICES={listed} hides the others; unset it to plan for all"
    return seen, (Assumption(what="visible GPUs", value=value, why=why),)


def hidden_gpus(machine: Machine) -> int:
    """Count the GPUs that `only_visible` left out."""
    found = (_HIDDEN.fullmatch(gap.what) for gap in machine.unknown if "hidden by CUDA_VISIBLE_DEVICES" in gap.why)
    return max((int(match[1]) for match in found if match), default=0)


def _is_one_rank(machine: Machine) -> bool:
    environment = machine.environment
    return "LOCAL_RANK" in environment or (
        len(entries_of(machine) or ()) == 1
        and any(environment.get(name, "").split(":")[-1] == "1" for name in ONE_EACH)
    )


def _chosen(gpus: tuple[Gpu, ...], listed: str) -> Iterator[Gpu]:
    """Find the GPUs of a list such as "0,GPU-5a1b,MIG-77c0", as CUDA does: up to the first entry that means none."""
    seen: set[tuple[str, str | None]] = set()
    for entry in (part.strip() for part in listed.split(",")):
        found = list(_meant(gpus, entry))
        if len(found) != 1 or (found[0].id, found[0].uuid) in seen:
            return
        seen.add((found[0].id, found[0].uuid))
        yield found[0]


def _by_unknown_uuids(machine: Machine) -> int:
    """Count the UUIDs that are listed, where those of the GPUs are not known or were made the same."""
    entries = dict.fromkeys(entries_of(machine) or ())
    known = len({gpu.uuid for gpu in machine.gpus if gpu.uuid}) == len(machine.gpus)
    return 0 if known or not all(entry.startswith("GPU-") for entry in entries) else len(entries)


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
    return replace(
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
    return replace(
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
    gap = Unknown(what=what, why=why)
    return machine if gap in machine.unknown else replace(machine, unknown=(*machine.unknown, gap))

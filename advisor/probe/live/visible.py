"""Leave out the GPUs that CUDA_VISIBLE_DEVICES hides from this process."""

from msgspec import structs

from advisor.rules.machine import Gpu, Machine, Unknown


def only_visible(machine: Machine) -> Machine:
    """Keep the GPUs that CUDA would show, under the ids and indices of `nvidia-smi`, and say how many are hidden."""
    listed = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None or not machine.gpus:
        return machine
    if "MIG-" in listed:
        why = "CUDA_VISIBLE_DEVICES names MIG instances, which are not probed; all GPUs are listed"
        return _noting(machine, "visible GPUs", why)
    if _order_matters(machine, listed):
        why = "CUDA counts mixed GPUs by speed, nvidia-smi by PCI address; `export CUDA_DEVICE_ORDER=PCI_BUS_ID`"
        machine = _noting(machine, f"GPUs meant by CUDA_VISIBLE_DEVICES={listed}", why)
    kept = _named(machine.gpus, listed)
    hidden = {gpu.id for gpu in machine.gpus if gpu not in kept}
    if not hidden:
        return machine
    links = tuple(link for link in machine.links if link.a not in hidden and link.b not in hidden)
    why = f"hidden by CUDA_VISIBLE_DEVICES={listed}; `unset CUDA_VISIBLE_DEVICES` shows them"
    return _noting(structs.replace(machine, gpus=kept, links=links), f"{len(hidden)} more GPU(s)", why)


def _named(gpus: tuple[Gpu, ...], listed: str) -> tuple[Gpu, ...]:
    """Find the GPUs of a list such as "0,GPU-5a1b": numbers and starts of UUIDs, up to the first that is neither."""
    found: list[Gpu] = []
    for entry in (part.strip() for part in listed.split(",")):
        if entry.isdecimal():
            matches = [gpu for gpu in gpus if gpu.index == int(entry)]
        else:
            matches = [gpu for gpu in gpus if entry.startswith("GPU-") and (gpu.uuid or "").startswith(entry)]
        if len(matches) != 1:
            break  # as CUDA does
        found += matches
    return tuple(gpu for gpu in gpus if gpu in found)


def _order_matters(machine: Machine, listed: str) -> bool:
    mixed = len({gpu.name for gpu in machine.gpus}) > 1
    by_number = listed.strip()[:1].isdecimal()
    return mixed and by_number and machine.environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"


def _noting(machine: Machine, what: str, why: str) -> Machine:
    return structs.replace(machine, unknown=(*machine.unknown, Unknown(what=what, why=why)))

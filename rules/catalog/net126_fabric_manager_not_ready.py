"""NVSwitch is there, but its fabric is not set up.

## What it finds
GPUs that say "Fabric State: In Progress" or "Not Started", or a host of eight NVSwitch modules whose
nvidia-fabricmanager is not active. Machines without NVSwitch need no fabric manager: there its failure means nothing.
Nor does it run inside most virtual machines.

## Why it matters
Every CUDA call fails with error 802, "system not yet initialized", though nvidia-smi lists all GPUs.

## What to do
Install nvidia-fabricmanager of exactly the driver's version, enable and start it.

## Source
https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide; https://github.com/pytorch/pytorch/issues/35710
"""

from collections.abc import Iterator

from advisor.rules.format import ids
from advisor.rules.machine import Gpu, Machine
from advisor.rules.nvlinks import is_module, model_of
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.topology import has_nvswitch
from advisor.rules.transport import capability_of

WAITING = ("in progress", "not started")


@rule("NET126", "fabric-manager-not-ready")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    states = {gpu.id: (gpu.fabric_state or "").lower() for gpu in machine.gpus}
    waiting = [gpu for gpu, state in states.items() if state in WAITING]
    service = machine.software.fabric_manager
    stopped = service in ("inactive", "absent") and _needs_service(machine) and "completed" not in states.values()
    if not waiting and not stopped:
        return
    said = f"{ids(waiting)} say fabric state '{states[waiting[0]]}'" if waiting else ""
    manager = f"nvidia-fabricmanager is {service}" if service in ("inactive", "absent") else ""
    driver = machine.software.driver
    version = f" of the driver's version{f', {driver}' if driver else ''}"
    yield Finding(
        code="NET126",
        name="fabric-manager-not-ready",
        severity="error",
        message=f"{'; '.join(part for part in (said, manager) if part)}: CUDA fails with error 802 until it is ready",
        facts={"waiting": waiting, "service": service, "driver": driver},
        remedy=f"install nvidia-fabricmanager{version}; sudo systemctl enable --now nvidia-fabricmanager",
    )


def _needs_service(machine: Machine) -> bool:
    """Say whether this host must run the fabric manager itself: A100 and newer modules behind NVSwitch."""
    modules = machine.gpus and all(is_module(gpu) and not _is_rack(gpu) for gpu in machine.gpus)
    new = all(float(capability_of(gpu) or 0) >= 8 for gpu in machine.gpus)
    switched = has_nvswitch(machine) or len(machine.gpus) >= 8
    return bool(modules) and new and switched and not machine.host.virtual


def _is_rack(gpu: Gpu) -> bool:
    """Say whether the switches, and what manages them, are in other trays of a rack, as of a GB200 NVL72."""
    model = model_of(gpu)
    return model is not None and model.key.startswith("gb")

"""Tell from the processes that this one sees whether NVIDIA's fabric manager and CUDA's multi-process service run."""

from pathlib import Path
from typing import Literal

from advisor.probe.live.host import in_container
from advisor.probe.live.sysfs import ROOT, folders, read
from advisor.rules.machine import Machine

# As /proc/*/comm has them, which is cut after 15 characters.
FABRIC_MANAGER, MPS, MPS_SERVER = "nv-fabricmanager"[:15], "nvidia-cuda-mps-control"[:15], "nvidia-cuda-mps-server"
PROGRAM = "usr/bin/nv-fabricmanager"


def read_services(
    machine: Machine, root: Path = ROOT
) -> tuple[Literal["active", "inactive", "absent"] | None, bool | None]:
    """Return the state of the fabric manager and whether MPS runs; None where a container hides the host's processes.

    A host without NVSwitches needs no fabric manager, and has no state of it.
    """
    names = {read(process / "comm") for process in folders(root / "proc") if process.name.isdecimal()}
    of_gpus = [process.name or "" for gpu in machine.gpus for process in gpu.processes or ()]
    hidden = in_container(root) or not names
    mps = True if MPS in names or any(MPS_SERVER in name for name in of_gpus) else None if hidden else False
    return _fabric_manager(machine, root, running=FABRIC_MANAGER in names, hidden=hidden), mps


def _fabric_manager(
    machine: Machine, root: Path, *, running: bool, hidden: bool
) -> Literal["active", "inactive", "absent"] | None:
    states = {gpu.fabric_state for gpu in machine.gpus} - {None}
    if not states and not any(node.kind == "nvswitch" for node in machine.pci):
        return None
    if running or states == {"completed"}:
        return "active"
    if hidden:
        return None
    return "inactive" if (root / PROGRAM).exists() else "absent"

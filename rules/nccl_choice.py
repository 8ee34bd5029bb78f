"""What NCCL has to choose from: algorithms and protocols by its lists, distances, and multicast through NVSwitch."""

import re

from advisor.rules.machine import Machine
from advisor.rules.topology import has_nvswitch
from advisor.rules.transport import capability_of

FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")  # the nearest first
OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")  # what the numbers 0 to 5 mean; larger ones are 5
HOPPER = 9.0

_MULTICAST = re.compile(r"nvls\.cc|NVLS|NVLink SHARP|[Mm]ulticast")


def allowed(value: str, names: tuple[str, ...]) -> dict[str, tuple[str, ...]] | str:
    """Read NCCL_ALGO or NCCL_PROTO: the names that each collective may use, those without an entry may use all.

    Returns the word that NCCL does not know where there is one. As NCCL 2.24 reads them: `ring,tree`, `^nvls`, and
    `allreduce:tree;allgather:ring`, of which only the first part may lack a collective. Capitals do not count.
    """
    found: dict[str, tuple[str, ...]] = {}
    for index, part in enumerate(part for part in value.lower().split(";") if part):
        function, colon, listed = part.rpartition(":")
        words = [word for word in listed.removeprefix("^").split(",") if word]
        unknown = [word for word in words if word not in names]
        if (colon and function not in FUNCTIONS) or (index and not colon):
            return function or part
        if unknown:
            return unknown[0]
        chosen = tuple(name for name in names if (name in words) != listed.startswith("^"))
        found |= dict.fromkeys((function,) if colon else FUNCTIONS, chosen)
    return found


def level_of(value: str) -> str | None:
    """Return the distance that NCCL_P2P_LEVEL or NCCL_NET_GDR_LEVEL means to NCCL; None where NCCL ignores it."""
    if value in LEVELS:
        return value
    digits = re.match(r"\d+", value)
    return OLD_LEVELS[min(int(digits[0]), len(OLD_LEVELS) - 1)] if digits else None


def has_multicast(machine: Machine) -> bool:
    """Say whether NVSwitch can add up for NCCL (NVLS): more than two GPUs, all of Hopper or newer."""
    known = [capability_of(gpu) for gpu in machine.gpus]
    return len(known) > 2 and has_nvswitch(machine) and all(c is not None and float(c) >= HOPPER for c in known)


def multicast_failure(machine: Machine) -> str | None:
    """Return the line of NCCL's log that says that multicast failed."""
    warnings = machine.nccl_log.warnings if machine.nccl_log else ()
    return next((line for line in warnings if _MULTICAST.search(line)), None)


def fabric_is_down(machine: Machine) -> bool:
    """Say whether the fabric manager is known not to have set the switches up."""
    states = {gpu.fabric_state for gpu in machine.gpus if gpu.fabric_state is not None}
    return machine.software.fabric_manager == "inactive" or bool(states - {"completed"})

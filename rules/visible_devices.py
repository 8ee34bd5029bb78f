"""What CUDA_VISIBLE_DEVICES lists."""

from advisor.rules.machine import Machine

NONE = ("", "-1", "NoDevFiles", "none", "void")


def entries_of(machine: Machine) -> tuple[str, ...] | None:
    """Return the entries, () where they hide every GPU; None where it is not set, or lists instances of MIG."""
    listed = machine.environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None or listed.strip() == "all":
        return None
    entries = tuple(entry.strip() for entry in listed.split(","))
    if entries[0] in NONE:
        return ()
    return None if any(entry.startswith("MIG-") for entry in entries) else entries

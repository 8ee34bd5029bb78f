"""Settle what stays unknown once all sources have been asked.

While probing, a reason is filed under the field it is about: "GPU0.numa", "host.shm", "links".
"""

from msgspec import structs

from advisor.rules.machine import Machine, Unknown


def settle(machine: Machine) -> Machine:
    """Drop the reasons for facts that another source knew, and say once what several fields have in common."""
    owners: dict[str, object] = {device.id: device for device in (*machine.gpus, *machine.nics)}
    owners |= {"host": machine.host, "software": machine.software}
    fields: dict[tuple[str, str], list[str]] = {}  # (field of devices or "", reason) -> what it is about
    for gap in machine.unknown:
        owner, dot, field = gap.what.partition(".")
        if not dot:
            if not _known(machine, gap.what):
                fields.setdefault(("", gap.why), []).append(gap.what)
        elif owner in owners and not _known(owners[owner], field):
            shared = "" if owner in ("host", "software") else field
            fields.setdefault((shared, gap.why), []).append(owner if shared else gap.what)
    unknown = (Unknown(what=_what(field, whats), why=why) for (field, why), whats in fields.items())
    return structs.replace(machine, unknown=tuple(unknown))


def _what(field: str, whats: list[str]) -> str:
    listed = ", ".join(dict.fromkeys(whats))
    return f"{field} of {listed}" if field else listed


def _known(value: object, path: str) -> bool:
    """Say whether a field holds something: not None and not an empty list."""
    for name in path.split("."):
        value = getattr(value, name, None)
    return value not in (None, ())

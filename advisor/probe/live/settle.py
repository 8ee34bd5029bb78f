"""Settle what stays unknown once all sources have been asked.

While probing, a reason is filed under the field it is about: "GPU0.numa", "host.shm", "links".
"""

from collections.abc import Iterator

from msgspec import structs

from advisor.rules.machine import Machine, Unknown


def settle(machine: Machine) -> Machine:
    """Drop the reasons for facts that another source knew, and say once what several fields or devices share."""
    devices: dict[str, object] = {gpu.id: gpu for gpu in machine.gpus} | {nic.id: nic for nic in machine.nics}
    owners = devices | {"host": machine.host, "software": machine.software}
    whole: dict[str, list[str]] = {}  # reason -> what has it
    shared: dict[tuple[str, str], list[str]] = {}  # (reason, field) -> devices
    for gap in machine.unknown:
        owner, dot, field = gap.what.partition(".")
        if dot and (owner not in owners or _known(owners[owner], field)):
            continue
        if owner in devices and dot:
            shared.setdefault((gap.why, field), []).append(owner)
        elif dot or not _known(machine, gap.what):
            whole.setdefault(gap.why, []).append(gap.what)
    unknown = [Unknown(what=_list(what), why=why) for why, what in whole.items()]
    return structs.replace(machine, unknown=(*unknown, *_by_devices(shared)))


def _by_devices(shared: dict[tuple[str, str], list[str]]) -> Iterator[Unknown]:
    """Put the fields together that the same devices lack for the same reason: "numa, uuid of GPU0, GPU1"."""
    fields: dict[tuple[str, str], list[str]] = {}
    for (why, field), ids in shared.items():
        fields.setdefault((why, _list(ids)), []).append(field)
    return (Unknown(what=f"{_list(names)} of {ids}", why=why) for (why, ids), names in fields.items())


def _list(words: list[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _known(value: object, path: str) -> bool:
    """Say whether a field holds something: not None and not an empty list."""
    for name in path.split("."):
        value = getattr(value, name, None)
    return value not in (None, ())

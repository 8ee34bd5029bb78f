"""Machines that have a name: cloud instances and well-known servers, listed in instances.toml."""

import difflib
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from advisor.probe.described import MOST_NODES, looks_described, machine_from_description, split_hosts
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Machine, Price, Unknown, Value

LISTED = "advisor probe --machine list shows all names"
LONGEST = 80  # characters of a name with a number of hosts

_COUNT = re.compile(r"\s*(\d{1,6})\s*(?:x\s*|\s)(?=\S)", re.IGNORECASE)
_LEADING = re.compile(r"^(?:(?:amazon|aws|azure|google|gcp|oracle|oci|lambda|nvidia|standard)[\s_.-]+)+")


class NamedMachine(Value, frozen=True, kw_only=True):
    """One entry of the table."""

    name: str
    also: tuple[str, ...] = ()  # other names of it
    vendor: str
    description: str  # in the words of described.py
    note: str | None = None  # what the description does not say truly
    price: Price | None = None
    source: str


def machine_in_words(text: str) -> Machine:
    """Build the machine that words name or describe. Raises AdvisorError that suggests near names."""
    machine = named_machine(text)
    if machine is not None:
        return machine
    near = near_names(text)
    meant = f"did you mean {', '.join(near)}? {LISTED}"
    if not looks_described(text):
        if near:
            raise AdvisorError(f"no machine is called {text!r}", meant)
        shown = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
        hint = f"give a file, or words such as '4x a10g pcie3x8' or 'p4d.24xlarge'; {LISTED}"
        raise AdvisorError(f"there is no file {shown}", hint)
    try:
        return machine_from_description(text)
    except AdvisorError as error:
        raise (AdvisorError(f"no machine is called {text!r}", meant) if near else error) from None


def named_machine(text: str) -> Machine | None:
    """Build a machine that the table names, or a number of such hosts: `p4d.24xlarge`, `2x p5.48xlarge`, `dgx h100`.

    None where the table has no such name. Case, spaces and `_-.` do not matter, nor does a leading `Standard_`.
    """
    nodes, entry = _find(text)
    if entry is None:
        return None
    if not 1 <= nodes <= MOST_NODES:
        raise AdvisorError(f"{nodes} hosts of {entry.name} can't be described", f"give 1 to {MOST_NODES} hosts")
    machine = machine_from_description(entry.description)
    note = (Unknown(what=entry.name, why=entry.note),) if entry.note else ()
    left_open = tuple(Unknown(what=unknown.what, why="it differs from build to build") for unknown in machine.unknown)
    return replace(
        machine,
        nodes=nodes,
        unknown=left_open + note,
        price=entry.price,
        source=entry.name if nodes == 1 else f"{nodes} x {entry.name}",
    )


def near_names(text: str) -> list[str]:
    """Names of the table that look like this one, for hints."""
    key = _key(split_hosts(text)[1]) if len(text) <= LONGEST else ""
    near = difflib.get_close_matches(re.sub(r"^\d+x", "", key), _by_key(), n=3, cutoff=0.75)
    return list(dict.fromkeys(_by_key()[name].name for name in near))


@cache
def named_machines() -> tuple[NamedMachine, ...]:
    """All entries of the table, in its order."""
    content: dict[str, Any] = msgspec.toml.decode((Path(__file__).parent / "instances.toml").read_bytes())
    return tuple(_entry(row, content["price_list"]) for row in content["machine"])


def _entry(row: dict[str, Any], lists: dict[str, Any]) -> NamedMachine:
    facts = {key: value for key, value in row.items() if key not in ("price", "price_list")}
    if "price" in row:
        facts["price"] = {"dollars_per_hour": row["price"], **lists[row["price_list"]]}
    return msgspec.convert(facts, NamedMachine)


def _find(text: str) -> tuple[int, NamedMachine | None]:
    """Find the entry, first by the whole text, since a name may begin with a number (8x MI300X server)."""
    if len(text) > LONGEST:
        return 1, None
    entry = _by_key().get(_key(text))
    if entry is not None:
        return 1, entry
    nodes, rest = split_hosts(text)
    if nodes is None and (count := _COUNT.match(text)):
        nodes, rest = int(count[1]), text[count.end() :]
    return (1, None) if nodes is None else (nodes, _by_key().get(_key(rest)))


@cache
def _by_key() -> dict[str, NamedMachine]:
    return {_key(name): entry for entry in named_machines() for name in (entry.name, *entry.also)}


def _key(name: str) -> str:
    return re.sub(r"[\s_.-]+", "", _LEADING.sub("", name.strip().lower()))

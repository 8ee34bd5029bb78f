"""What is known of NCCL's variables, `nccl_variables.toml`, and the ones that a machine has set.

NCCL takes the process environment first, then its own files, so each setting carries the layer that it came from.
"""

import difflib
import re
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from advisor.rules.machine import Machine, Value
from advisor.rules.plan import Severity

Policy = Literal["judged", "diagnosis", "undocumented", "kept", "renamed", "removed", "elsewhere"]
POLICIES: tuple[Policy, ...] = ("judged", "diagnosis", "undocumented", "kept", "renamed", "removed", "elsewhere")
PREFIX = "NCCL_"
LIKE = 0.8  # how much of two names must be equal for one to be a slip of the other
OLDEST = (2, 28)  # what a machine is taken to have that does not say: the NCCL of PyTorch 2.11

_NUMBER = re.compile(r"[ \t\r\n]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9]\d*)")


class Variable(Value, frozen=True, kw_only=True):
    """One row of the table; the file says what each field means."""

    name: str
    policy: Policy
    kind: Literal["number", "level", "text"] = "number"
    default: str | None = None
    harmless: tuple[str, ...] = ()
    since: str | None = None
    removed: str | None = None
    renamed: str | None = None  # since when it has a new name
    new: str | None = None
    severity: Severity = "info"
    cost: str | None = None
    documented: bool = True

    @property
    def source(self) -> str:
        table = _table()
        page: str = table["source"]
        code: str = table["source_of_undocumented"]
        known = self.documented and self.policy not in ("undocumented", "removed")
        return f"{page}#{self.name.lower().replace('_', '-')}" if known else code

    def changes_nothing(self, value: str) -> bool:
        """Say whether a value is what NCCL does anyway; an empty one counts as none."""
        if self.kind == "number" and self.default is not None and value:
            return number(value) in (number(self.default), *map(number, self.harmless))
        return not value or value in (self.default, *self.harmless)


class Setting(NamedTuple):
    """A variable that is set, and where: a file of NCCL, a run's log, or the environment."""

    name: str
    value: str
    file: str | None = None
    logged: bool = False

    @property
    def layer(self) -> str:
        return "a run's log" if self.logged else self.file or "the environment"

    @property
    def words(self) -> str:
        return f"{self.name}={self.value} in {self.layer}"

    @property
    def undo(self) -> str:
        return f"delete the line {self.name}= from {self.file}" if self.file else f"unset {self.name}"

    @property
    def facts(self) -> dict[str, Any]:
        return {"variable": self.name, "value": self.value, "layer": self.layer}


def settings(machine: Machine) -> tuple[Setting, ...]:
    """Return the variables of NCCL that are set on the machine, or were in the run whose log is known."""
    found = [
        Setting(name, value, machine.environment_files.get(name))
        for name, value in machine.environment.items()
        if name.startswith(PREFIX)
    ]
    logged = machine.nccl_log.variables if machine.nccl_log else {}
    found += [
        Setting(name, value, logged=True)
        for name, value in logged.items()
        if name.startswith(PREFIX) and name not in machine.environment and not name.startswith("NCCL_DEBUG")
    ]
    return tuple(found)


def setting(machine: Machine, name: str) -> Setting | None:
    """Return what a variable is set to; None where it is not set, or set to nothing."""
    return next((found for found in settings(machine) if found.name == name and found.value), None)


def number_of(machine: Machine, name: str) -> int | None:
    """Return a variable as the number that NCCL takes it for; None where it is not set."""
    found = setting(machine, name)
    return None if found is None else number(found.value)


def number(value: str) -> int:
    """Read a number as NCCL does, by strtoll: hexadecimal and octal too, what follows is dropped, no number is 0."""
    match = _NUMBER.match(value)
    if match is None:
        return 0
    digits = match[2]
    base = 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" else 10
    return int(digits, base) * (-1 if match[1] == "-" else 1)


def nccl_version(machine: Machine) -> tuple[int, ...]:
    """Return the release of NCCL, (2, 28, 9); where the machine does not say, the oldest that PyTorch 2.11 brings."""
    log = machine.nccl_log.version if machine.nccl_log else None
    return release(machine.software.nccl or log or "") or OLDEST


def release(text: str) -> tuple[int, ...]:
    """Read the numbers of a release: 2.28.9+cuda13.0 is (2, 28, 9); () where there are none."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


@cache
def variables() -> dict[str, Variable]:
    """Return the table by name."""
    table = _table()
    return {row["name"]: msgspec.convert(row | {"policy": p}, Variable) for p in POLICIES for row in table[p]}


def of_plugin(name: str) -> bool:
    """Say whether a plugin reads the variable, which this table does not cover."""
    return name.startswith(tuple(_table()["plugins"]))


def nearest(name: str) -> str | None:
    """Return the known name that a name was probably meant to be."""
    known = {row.removeprefix(PREFIX): row for row in variables()}
    found = difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1, cutoff=LIKE)
    return known[found[0]] if found else None


@cache
def _table() -> dict[str, Any]:
    content: dict[str, Any] = msgspec.toml.decode((Path(__file__).parent / "nccl_variables.toml").read_bytes())
    return content

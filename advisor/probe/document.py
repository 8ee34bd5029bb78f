"""The document of `advisor probe --json` and `-o machine.json`: report, bug report and fixture at once."""

import msgspec
from msgspec import field

from advisor.rules.errors import AdvisorError
from advisor.rules.fabric import Fabric
from advisor.rules.machine import Machine, Value
from advisor.rules.measurements import Measurements
from advisor.rules.plan import Finding

VERSION = 1


class ProbeDocument(Value, frozen=True, kw_only=True):
    """A machine with what was made of it. Reading takes the machine and what was measured; the rest is made anew."""

    version: int = VERSION
    machine: Machine
    fabric: Fabric | None = None
    findings: tuple[Finding, ...] = field(default_factory=tuple)
    measured: Measurements | None = None


def read_document(content: bytes, name: str) -> ProbeDocument:
    """Read a stored document. Raises AdvisorError that names the field which is wrong."""
    save = "save the machine again with: advisor probe -o machine.json"
    try:
        fields = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        last_line = len(content.splitlines())
        end = f", at the end of line {last_line}" if "truncated" in str(error) else ""
        raise AdvisorError(f"{name} is no whole JSON object: {error}{end}", save) from error
    if "machine" not in fields:
        what = "a recommendation" if "verdict" in fields else "a plan" if "strategy" in fields else "another document"
        raise AdvisorError(f"{name} holds {what}, not a machine", save)
    version = fields.get("version", b"missing")
    if bytes(version) != str(VERSION).encode():
        hint = f"this advisor reads version {VERSION}; {save}"
        raise AdvisorError(f"{name} has version {bytes(version).decode(errors='replace')}", hint)
    try:
        return msgspec.json.decode(content, type=ProbeDocument)
    except msgspec.MsgspecError as error:
        raise AdvisorError(f"{name}: {error}", save) from error

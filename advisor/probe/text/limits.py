"""Read the limits of a process: what `ulimit -a` or /proc/self/limits print."""

import re
from typing import Any

from advisor.probe.text.paste import plain
from advisor.rules.machine import Host, Machine

UNITS = {"kbytes": 1024, "bytes": 1, "": 1, "files": 1}

_BASH = re.compile(
    r"^[ \t]*(max locked memory|stack size|open files)[ \t]+\((?:(\w+), )?-[lsn]\)[ \t]+(unlimited|\d{1,19})[ \t\r]*$",
    re.MULTILINE,
)
_DASH = re.compile(
    r"^[ \t]*(?:-[lsn]: )?(locked memory|locked-in-memory size|stack(?: size)?|file descriptors|nofiles)"
    r"\s?\((\w*)\)[ \t]+(unlimited|\d{1,19})[ \t\r]*$",
    re.MULTILINE,
)
_PROC = re.compile(
    r"^[ \t]*(Max locked memory|Max stack size|Max open files)[ \t]+(unlimited|\d{1,19})"
    r"[ \t]+(?:unlimited|\d{1,19})[ \t]+(\w+)",
    re.MULTILINE,
)


def read_limits(text: str, source: str) -> Machine | None:
    """Build a machine of which only the limits are known; None where the text holds none."""
    if not re.search("locked|stack|open files|descriptors|nofiles", text):
        return None
    text = plain(text)
    found = [(what, unit, value) for what, unit, value in (*_BASH.findall(text), *_DASH.findall(text))]
    found += [(what, unit, value) for what, value, unit in _PROC.findall(text)]
    limits: dict[str, Any] = {}
    for what, unit, value in found:
        limits.setdefault(_field(what), -1 if value == "unlimited" else int(value) * UNITS.get(unit, 1))
    return Machine(host=Host(**limits), source=source) if limits else None


def _field(what: str) -> str:
    what = what.lower()
    return "memlock" if "locked" in what else "stack" if "stack" in what else "open_files"

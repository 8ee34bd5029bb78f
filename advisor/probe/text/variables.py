"""Read variables of the environment: what `env` prints, and lines such as `export NCCL_DEBUG=INFO`.

Only those that steer training are kept; a line that sets variables for one command is not the environment.
"""

import re

from advisor.probe.steering import steers
from advisor.probe.text.paste import plain
from advisor.rules.machine import Machine

LONGEST = 1000  # characters of a value

_LINE = re.compile(
    r"^(?:\S{0,60}[$#%>] +)?(?:export |declare -x |ENV |setenv |-e |- )?[ \t]*([A-Z][A-Z0-9_]{2,99})=([^\n]*)$",
    re.MULTILINE,
)
_VALUE = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'|(\S*)")


def read_variables(text: str, source: str) -> Machine | None:
    """Build a machine of which only the variables are known; None where the text sets none that we keep."""
    if "=" not in text:
        return None
    found: dict[str, str] = {}
    for name, rest in _LINE.findall(plain(text)):
        value = _value(rest.strip())
        if value is not None and steers(name):
            found[name] = value  # of two the last, as in a shell
    return Machine(environment=found, source=source) if found else None


def _value(text: str) -> str | None:
    """Take the quotes off; None where a command follows, as in `NCCL_DEBUG=INFO torchrun train.py`."""
    match = _VALUE.match(text)
    rest = text[match.end() :].strip() if match else ""
    if match is None or (rest and not rest.startswith(("#", ";", "\\"))):
        return None
    return next(group for group in (*match.groups(), "") if group is not None)[:LONGEST]

"""Read what a run with NCCL_DEBUG=INFO or WARN printed, also among other output.

A line is `host:pid:tid [gpu] NCCL INFO text`, a warning has the place in NCCL's source before `NCCL WARN`.
"""

import re
from collections import Counter

from advisor.probe.text.paste import plain
from advisor.rules.machine import Machine, NcclLog

MOST_WARNINGS, LONGEST = 50, 400  # of warnings: lines, characters of each

_LINE = re.compile(r"NCCL (INFO|WARN)[ \t]+([^\n]*)")
_VERSION = re.compile(r"\bNCCL version (\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)")
_HOST = re.compile(r"([A-Za-z0-9][\w.-]{0,99}):\d{1,10}:\d{1,10} \[")
_BOOTSTRAP = re.compile(r"Bootstrap ?: ?Using (?:\[\d+\])?([\w.-]{1,32}):")
_NETWORK = re.compile(r"Using network (.+)")
_DEVICES = re.compile(r"NET/(IB|Socket) ?: ?Using (.+)")
_DEVICE = re.compile(r"\[\d{1,3}\]([\w.-]{1,32})(?=[:/])")
_PROVIDER = re.compile(r"Selected [Pp]rovider is ([\w;.-]{1,64})")
_CHANNEL = re.compile(r"Channel \d{1,4}(?:/\d{1,4})? ?: .{3,80}? via (.+)")
_VARIABLE = re.compile(r"(NCCL_\w{1,99}) set (?:by environment )?to (.*)")
_START = re.compile(r"\bInit START\b|Bootstrap ?:")


def read_nccl_log(text: str, source: str) -> Machine | None:
    """Build a machine of which only the log is known; None where the text holds no line of NCCL's."""
    if "NCCL " not in text:
        return None
    text = plain(text)
    version = _VERSION.search(text)
    lines = list(_LINE.finditer(text))
    if not lines and version is None:
        return None
    return Machine(nccl_log=_log(text, lines, version[1] if version else None), source=source)


def _log(text: str, lines: list[re.Match[str]], version: str | None) -> NcclLog:
    said = [line[2].rstrip() for line in lines if line[1] == "INFO"]
    warnings = [line for line in lines if line[1] == "WARN"]
    devices = {found[1]: found[2] for words in said if (found := _DEVICES.match(words))}
    used = None if not devices and not _says(said, "NET/IB : No device found") else ()
    for names in devices.values():
        used = tuple(dict.fromkeys((*(used or ()), *_DEVICE.findall(names))))
    socket = _DEVICE.search(devices.get("Socket", ""))
    complete = _says(said, "Init COMPLETE")
    return NcclLog(
        version=version,
        interface=_first(_BOOTSTRAP, said) or (socket[1] if socket else None),
        network=_first(_NETWORK, said),
        provider=_first(_PROVIDER, said),
        devices=used,
        transports=dict(Counter(_transport(found[1]) for words in said if (found := _CHANNEL.match(words)))),
        variables={found[1]: _value(found[2]) for words in said if (found := _VARIABLE.match(words))},
        warnings=tuple(dict.fromkeys(line[2].strip()[:LONGEST] for line in warnings))[:MOST_WARNINGS],
        hosts=tuple(dict.fromkeys(host for line in warnings if (host := _host(text, line.start())))),
        complete=True if complete else False if any(_START.search(words) for words in said) else None,
    )


def _says(said: list[str], words: str) -> bool:
    return any(words in line for line in said)


def _first(pattern: re.Pattern[str], said: list[str]) -> str | None:
    found = next((match for words in said if (match := pattern.search(words))), None)
    return found[1].strip() if found else None


def _transport(way: str) -> str:
    """Shorten `NET/IB/0/GDRDMA` to NET/IB; NCCL before 2.9 has SHM in words."""
    if way.startswith("direct shared memory"):
        return "SHM/direct"
    return "/".join(way.split("/")[:2]).strip()[:40]


def _value(text: str) -> str:
    return text.strip().removesuffix(".").strip("\"'")[:200]


def _host(text: str, at: int) -> str | None:
    """Find the host's name, which opens the line up to a warning."""
    before = text[max(text.rfind("\n", 0, at) + 1, at - 200) : at]
    found = _HOST.search(before)
    return found[1] if found else None

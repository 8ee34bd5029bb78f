"""Read what torch, Gloo and NCCL print when a rank can't connect to another: DistNetworkError, `Connection refused`."""

import re

from advisor.probe.text.paste import plain
from advisor.rules.machine import Machine

MOST_LINES, LONGEST = 50, 400

_WHY = r"refused|timed? ?out|no route to host|network is unreachable|host is unreachable"
_SAYS = re.compile(
    # torch's store, also through elastic
    r"DistNetworkError|c10d.{0,40}client socket has (?:timed out|failed)|The client socket (?:has|cannot be)"
    r"|TCP client failed to connect|connect\(\) timed out"
    # what the system answers, with the address that was asked: connect() to 10.0.0.5, connect [127.0.1.1]:33571
    rf"|\bconnect(?:\(\)|ing)? (?:to )?(?:failed to )?[\[(]?\d{{1,3}}(?:\.\d{{1,3}}){{3}}\b.{{0,80}}?(?:{_WHY})"
    rf"|Call to connect.{{0,80}}?(?:{_WHY})|socket\w+Connect: .{{0,80}}?(?:{_WHY})"
    rf"|[Gg]loo.{{0,200}}?(?:{_WHY})",
    re.IGNORECASE,
)
_MAY = ("onnect", "client socket", "DistNetworkError")


def read_rendezvous(text: str, source: str) -> Machine | None:
    """Build a machine of which only failed connections are known; None where the text tells of none."""
    if not any(word in text for word in _MAY):
        return None
    lines = [line.strip()[:LONGEST] for line in plain(text).splitlines() if _SAYS.search(line[: 10 * LONGEST])]
    if not lines:
        return None
    return Machine(failed_connections=tuple(dict.fromkeys(lines))[:MOST_LINES], source=source)

"""Read from `lspci -vvv`, run by root, whether PCIe ports redirect peer-to-peer traffic: Access Control Services."""

import re

from advisor.probe.text.paste import plain
from advisor.rules.machine import Host, Machine, Unknown

_CONTROL = re.compile(r"ACSCtl:\s*([^\n]{1,200})")
_DENIED = re.compile(r"Capabilities: <access denied>")


def read_acs(text: str, source: str) -> Machine | None:
    """Build a machine of which only ACS is known; None where the text tells nothing of it.

    ReqRedir sends a GPU's requests to a neighbour up to the root, CmpltRedir the answers.
    """
    if "ACSCtl" not in text and "access denied" not in text:
        return None
    text = plain(text)
    controls = _CONTROL.findall(text)
    if controls:
        redirects = any("ReqRedir+" in control or "CmpltRedir+" in control for control in controls)
        return Machine(host=Host(acs=redirects), source=source)
    if _DENIED.search(text):
        why = "lspci shows capabilities to root alone; `sudo lspci -vvv | grep ACSCtl`"
        return Machine(unknown=(Unknown(what="host.acs", why=why),), source=source)
    return None

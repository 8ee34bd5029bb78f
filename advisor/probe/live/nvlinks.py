"""Read the NVLinks of a GPU: which are up, how fast they run, where they lead."""

from collections.abc import Sequence
from typing import Any, Literal

from advisor.probe.live.nvml import query
from advisor.rules.machine import NvLink

MOST_LINKS = 36  # NVML_NVLINK_MAX_LINKS
GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5}  # nvmlNvlinkVersion_t: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0
REMOTES: dict[int, Literal["gpu", "switch", "cpu"]] = {0: "gpu", 1: "cpu", 2: "switch"}  # nvmlIntNvLinkDeviceType_t

# Fields of NVML with a link's speed in 10^6 bytes per second: NVML_FI_DEV_NVLINK_GET_SPEED takes the link as its scope,
# older drivers have one field for each of 12 links.
GET_SPEED = 164
SPEED_OF_LINK = (*range(84, 90), *range(132, 138))


def read_nvlinks(handle: Any) -> tuple[NvLink, ...]:
    """List a GPU's links, `nvidia-smi nvlink -s`; none where NVML knows no links of it."""
    states = {link: query("nvmlDeviceGetNvLinkState", handle, link).value for link in range(MOST_LINKS)}
    links = [link for link, state in states.items() if state is not None]
    speeds = _speeds(handle, [link for link in links if states[link] == 1])
    return tuple(_link(handle, link, active=states[link] == 1, bandwidth=speeds.get(link)) for link in links)


def _link(handle: Any, number: int, *, active: bool, bandwidth: float | None) -> NvLink:
    if not active:
        return NvLink(number=number, active=False)
    remote = query("nvmlDeviceGetNvLinkRemotePciInfo", handle, number).value
    kind = query("nvmlDeviceGetNvLinkRemoteDeviceType", handle, number).value
    return NvLink(
        number=number,
        active=True,
        version=GENERATIONS.get(query("nvmlDeviceGetNvLinkVersion", handle, number).value),
        bandwidth=bandwidth,
        remote=None if remote is None else _text(remote.busId),
        remote_kind=REMOTES.get(kind),
    )


def _speeds(handle: Any, links: Sequence[int]) -> dict[int, float]:
    """Return the speeds that NVML tells, bytes per second by link; a virtual machine hides them."""
    for fields in ({link: (GET_SPEED, link) for link in links}, dict(zip(links, SPEED_OF_LINK, strict=False))):
        values = query("nvmlDeviceGetFieldValues", handle, list(fields.values())).value if fields else None
        found = {
            link: value.value.uiVal * 1e6
            for link, value in zip(fields, values or (), strict=False)
            if value.nvmlReturn == 0 and value.value.uiVal
        }
        if found:
            return found
    return {}


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value

"""Read what `nvidia-smi nvlink` prints of each link: its speed (-s, --status) and where it leads (-R)."""

import re

from msgspec.structs import replace

from advisor.probe.text.paste import plain
from advisor.rules.machine import Gpu, Machine, NvLink

MOST_GPUS, MOST_LINKS = 512, 64  # a greater number names no GPU, no link
MOST_LINKS_OF_GPU = 18  # a remote end with a port above that is a switch
GB = 1e9

# What -c, -e and -g print of a link has no such value and is passed over.
_ENTRY = re.compile(
    r"""\bGPU[ ](?P<gpu>\d{1,4}):[ ](?P<name>(?:[^\n(L]|L(?!ink[ ]\d)){1,99}+)
            (?:\(UUID:[ ](?P<uuid>[^)\n]{1,99})\))?
    |\bLink[ ](?P<link>\d{1,4}):\s{1,4}(?:
        Remote[ ]Device[ ](?P<remote>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])
            (?::[ ]Link[ ](?P<port>\d{1,4}))?
        |(?P<speed>\d{1,4}(?:\.\d{1,6})?)[ ]?GB/s
        |(?P<inactive><?in[Aa]ctive>?)
        |(?P<unknown>N/A|[Uu]nknown))
    |(?P<none>all[ ]links[ ]are[ ]in[Aa]ctive)""",
    re.VERBOSE,
)


def read_nvlink_status(text: str, source: str) -> Machine | None:
    """Build a machine of the GPUs and NVLinks in a text. None where it tells of no link of a GPU.

    A GPU that the paste has lost is absent; one of which only the name is left has unknown links.
    """
    if "Link " not in text and "links are in" not in text:
        return None
    gpus: dict[int, Gpu] = {}
    links: dict[int, dict[int, NvLink]] = {}
    switches: set[str] = set()
    at: int | None = None
    for entry in _ENTRY.finditer(plain(text)):
        if entry["gpu"]:
            at = int(entry["gpu"]) if int(entry["gpu"]) < MOST_GPUS else None
            if at is not None:
                gpus.setdefault(at, Gpu(id=f"GPU{at}", index=at, name=entry["name"].strip(), uuid=entry["uuid"]))
        elif at is not None:
            of_gpu = links.setdefault(at, {})
            if entry["port"] and int(entry["port"]) >= MOST_LINKS_OF_GPU:
                switches.add(entry["remote"])
            if entry["link"] and (number := int(entry["link"])) < MOST_LINKS:
                of_gpu[number] = _link(of_gpu.get(number, NvLink(number=number)), entry)
    if not links:
        return None
    return Machine(
        gpus=tuple(
            replace(gpu, nvlinks=_in_order(links[index], switches) if index in links else None)
            for index, gpu in sorted(gpus.items())
        ),
        source=source,
    )


def _link(link: NvLink, entry: re.Match[str]) -> NvLink:
    """Add what an entry says of a link."""
    if entry["inactive"]:
        return replace(link, active=False)
    if entry["remote"]:
        return replace(link, active=True if link.active is None else link.active, remote=entry["remote"])
    if entry["speed"] and float(entry["speed"]) > 0:
        return replace(link, active=True, bandwidth=GB * float(entry["speed"]))
    return link


def _in_order(links: dict[int, NvLink], switches: set[str]) -> tuple[NvLink, ...]:
    return tuple(
        replace(link, remote_kind="switch") if link.remote in switches else link for _, link in sorted(links.items())
    )

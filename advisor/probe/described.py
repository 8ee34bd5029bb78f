"""Read a machine described in words: '4x a10g pcie3x8', '2x8 h100 nvswitch, ib 8x400', '8x 4090 pcie4, 2 sockets'.

Grammar: `[HOSTSx]GPUSx NAME [words], [words] ...` in any order after the name. Words:

    nvswitch            all GPUs of a host through NVSwitch (what modules since A100 have if nothing is said)
    nvlink, mesh        every pair directly, the links shared evenly; 8 GPUs of a DGX-1 as the hybrid cube mesh (what
                        older modules have); of cards: pairs
    pairs, bridge       bridges between GPU 0 and 1, 2 and 3, ...
    pcieGxW, pcieG      PCIe generation and lanes of each GPU: pcie3x8, pcie4, 'pcie gen3 x8'
    switch              pairs of GPUs behind one PCIe switch
    N sockets           GPUs spread evenly over N sockets (default 1 up to 4 GPUs, else 2, unless NVSwitch)
    ib [Nx]RATE, roce [Nx]RATE, efa [Nx]RATE, ethernet [Nx]RATE
                        network adapters of each host and their rate in Gb/s: ib 8x400
    SIZE ram            memory of each host: 512GB ram
    N cpus              logical processors of each host
"""

import re
from collections.abc import Callable
from itertools import combinations
from typing import Literal

from msgspec import Struct

from advisor.rules.errors import AdvisorError
from advisor.rules.hardware import GpuModel, gpu_model
from advisor.rules.links import kind_of_code
from advisor.rules.machine import Gpu, Host, Link, Machine, Nic, Pcie, Unknown

EXAMPLES = "examples: '4x a10g pcie3x8', '2x8 h100 nvswitch, ib 8x400', '8x 4090 pcie4, 2 sockets'"
MOST_GPUS, MOST_NODES, MOST_NICS = 64, 100_000, 64

_START = re.compile(r"\s*(?:(\d{1,6})x)?(\d{1,6})(?:\s*x\s*|\s+)([a-z0-9].*)", re.IGNORECASE | re.DOTALL)
_FILE_NAME = re.compile(r".*/.*|.*\.[a-z]{2,5}\s*", re.IGNORECASE | re.DOTALL)
_NetworkKind = Literal["infiniband", "roce", "efa", "ethernet"]
_NETWORKS: dict[str, _NetworkKind] = {"ib": "infiniband", "roce": "roce", "efa": "efa", "ethernet": "ethernet"}
_SPELLINGS = (  # as people write it, as the grammar has it
    (r"\bpcie\s*(?:gen|g)\s*(?=[1-6])", "pcie"),
    (r"\b(pcie[1-6])\s*x\s*(?=\d)", r"\1x"),
    (r"\b(ib|roce|efa|ethernet)\s*((?:\d+x)?\d+)(?:g|gb|gbit|gbps|gb/s)?(?=[\s,;]|$)", r"\1 \2"),
)

# NVLinks between the 8 GPUs of a DGX-1 with V100; with P100 one link each. `nvidia-smi topo -m` of such machines.
_CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
    (0, 4): 2, (1, 5): 2, (2, 6): 1, (3, 7): 1,
}  # fmt: skip
_RAM = {"g": 1e9, "gb": 1e9, "gib": 2.0**30, "t": 1e12, "tb": 1e12, "tib": 2.0**40}


class _Words(Struct):
    """What the words after the name say."""

    fabric: Literal["nvswitch", "mesh", "pairs"] | None = None
    generation: int | None = None
    width: int | None = None
    switch: bool = False
    sockets: int | None = None
    network: _NetworkKind | None = None
    nics: int = 0
    gigabits: float = 0.0
    ram: int | None = None
    cpus: int | None = None


def looks_described(text: str) -> bool:
    """Say whether a text begins like a description: a number of GPUs, then a word."""
    return _START.fullmatch(text) is not None and not _FILE_NAME.fullmatch(text)


def machine_from_description(text: str) -> Machine:
    """Build the machine that the words describe; what they leave open is listed as unknown.

    Raises AdvisorError that names the word not understood.
    """
    start = _START.fullmatch(text)
    if start is None:
        raise AdvisorError(f"{text!r} does not begin with a number of GPUs", EXAMPLES)
    nodes, count = int(start[1] or 1), int(start[2])
    if not (1 <= count <= MOST_GPUS and 1 <= nodes <= MOST_NODES):
        raise AdvisorError(f"{nodes} hosts of {count} GPUs are more than can be described", EXAMPLES)
    model, rest = _name(_spelled(start[3]))
    words = _read_words(rest, text)
    fabric_given = words.fabric is not None
    usual = _usual_fabric(model, count)
    words.fabric = "pairs" if words.fabric == "mesh" and usual is None else words.fabric or usual
    _check(words, model, count)
    gpus = tuple(_gpu(index, model, words) for index in range(count))
    sockets = words.sockets or (1 if count <= 4 or words.fabric == "nvswitch" else 2)
    code = _codes(words, model, count, sockets)
    links = []
    for a, b in combinations(gpus, 2):
        text_code = code(a.index, b.index)
        kind = kind_of_code(text_code)
        assert kind is not None  # `_codes` makes codes of the table alone
        links.append(Link(a=a.id, b=b.id, code=text_code, kind=kind))
    return Machine(
        gpus=gpus,
        nics=tuple(
            Nic(id=f"NIC{index}", kind=words.network, bandwidth=words.gigabits * 1e9 / 8) for index in range(words.nics)
        ),
        links=tuple(links),
        host=Host(sockets=words.sockets, memory=words.ram, cpus=words.cpus),
        nodes=nodes,
        unknown=tuple(_left_open(words, nodes, sockets, fabric_given=fabric_given)),
        source=f"description: {text.strip()}",
    )


def _spelled(text: str) -> str:
    for pattern, spelling in _SPELLINGS:
        text = re.sub(pattern, spelling, text, flags=re.IGNORECASE)
    return text


def _name(text: str) -> tuple[GpuModel, list[str]]:
    """Split off the longest run of words that names a GPU."""
    words = re.sub(r"[,;]", " ", text).split()
    for length in range(min(5, len(words)), 0, -1):
        model = gpu_model(" ".join(words[:length]))
        if model is not None:
            return model, words[length:]
    raise AdvisorError(f"no GPU called {words[0]!r} is known" if words else "no GPU is named", EXAMPLES)


def _read_words(words: list[str], text: str) -> _Words:
    found = _Words()
    rest = [word.lower() for word in words]
    while rest:
        word = rest.pop(0)
        if word == "nvswitch":
            found.fabric = "nvswitch"
        elif word in ("nvlink", "mesh"):
            found.fabric = "mesh"
        elif word in ("pairs", "bridge", "bridges", "bridged"):
            found.fabric = "pairs"
        elif word == "switch":
            found.switch = True
        elif match := re.fullmatch(r"pcie([1-6])(?:x(1|2|4|8|16))?", word):
            found.generation, found.width = int(match[1]), int(match[2]) if match[2] else None
        elif word in _NETWORKS and rest and (match := re.fullmatch(r"(?:(\d+)x)?(\d+(?:\.\d+)?)", rest[0])):
            found.network, found.nics, found.gigabits = _NETWORKS[word], int(match[1] or 1), float(match[2])
            del rest[0]
        elif word.isdecimal() and rest and re.fullmatch(r"sockets?|cpus?", rest[0]):
            number, what = int(word), rest.pop(0)
            if what.startswith("socket"):
                found.sockets = number
            else:
                found.cpus = number
        elif (match := re.fullmatch(r"(\d+)([a-z]+)", word)) and match[2] in _RAM and rest[:1] == ["ram"]:
            found.ram = int(int(match[1]) * _RAM[match[2]])
            del rest[0]
        else:
            raise AdvisorError(f"{word!r} in {text.strip()!r} is not understood", EXAMPLES)
    return found


def _check(words: _Words, model: GpuModel, count: int) -> None:
    if words.fabric and not model.nvlink_links:
        raise AdvisorError(f"{model.name} has no NVLink", f"describe its PCIe links; {EXAMPLES}")
    if words.fabric == "mesh" and count - 1 > model.nvlink_links and not _is_cube(model, count):
        raise AdvisorError(f"{model.nvlink_links} NVLinks don't join a GPU with {count - 1} others", "say nvswitch")
    if words.sockets is not None and not 1 <= words.sockets <= count:
        raise AdvisorError(
            f"{count} GPUs on {words.sockets} sockets", "give a number of sockets up to that of the GPUs"
        )
    if words.nics > MOST_NICS or words.gigabits > 10_000:
        raise AdvisorError("that network is more than can be described", EXAMPLES)


def _usual_fabric(model: GpuModel, count: int) -> Literal["nvswitch", "mesh"] | None:
    """Return how hosts of a GPU on a module are wired; None for cards, which have bridges only if said so."""
    kind = set(model.key.split("-"))
    if not model.nvlink_links or kind & {"pcie", "nvl"} or (model.nvlink_links < 6 and "sxm" not in kind):
        return None
    joined = _is_cube(model, count) or count - 1 <= model.nvlink_links
    return "mesh" if joined and float(model.compute_capability or 0) < 8.0 else "nvswitch"


def _is_cube(model: GpuModel, count: int) -> bool:
    return count == 8 and model.nvlink_links in (4, 6)


def _gpu(index: int, model: GpuModel, words: _Words) -> Gpu:
    generation, width = words.generation or model.pcie_generation, words.width or model.pcie_width
    return Gpu(
        id=f"GPU{index}",
        index=index,
        name=model.name,
        memory=model.memory,
        compute_capability=model.compute_capability,
        pcie=Pcie(generation_max=generation, width_max=width, width=width) if generation else None,
    )


def _codes(words: _Words, model: GpuModel, count: int, sockets: int) -> Callable[[int, int], str]:
    """Return what nvidia-smi would print between two GPUs."""
    links = model.nvlink_links
    through_mesh = links // (count - 1) if count > 1 else links

    def code(a: int, b: int) -> str:
        if not links and model.link_rate:  # AMD: every pair over Infinity Fabric
            return "XGMI"
        if words.fabric == "nvswitch":
            return f"NV{links}"
        if words.fabric == "mesh" and not _is_cube(model, count):
            return f"NV{through_mesh}"
        if words.fabric == "mesh" and (a, b) in _CUBE_MESH:
            return f"NV{_CUBE_MESH[a, b] if links == 6 else 1}"
        if words.fabric == "pairs" and a // 2 == b // 2:
            return f"NV{links}"
        if a * sockets // count != b * sockets // count:
            return "SYS"
        if words.switch and a // 2 == b // 2:
            return "PIX"
        return "PHB"

    return code


def _left_open(words: _Words, nodes: int, sockets: int, *, fabric_given: bool) -> list[Unknown]:
    said = [
        Unknown(what="NVLink", why=f"the description does not say how it is wired; {words.fabric} taken")
        if words.fabric and not fabric_given
        else None,
        Unknown(what="host memory", why="the description does not give it; add for example '512GB ram'")
        if words.ram is None
        else None,
        Unknown(what="processors", why="the description does not give them; add for example '64 cpus'")
        if words.cpus is None
        else None,
        Unknown(what="sockets", why=f"the description does not give them; {sockets} taken")
        if words.sockets is None
        else None,
        Unknown(what="network", why="the description does not give it; add for example 'ib 8x400'")
        if nodes > 1 and not words.nics
        else None,
    ]
    return [unknown for unknown in said if unknown is not None]

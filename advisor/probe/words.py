"""The words that may follow the GPUs in a description, and what each one says of the machine."""

import difflib
import re
from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct, structs

from advisor.rules.errors import AdvisorError

EXAMPLES = "examples: '4x a10g pcie3x8', '2x8 h100 nvswitch, ib 8x400', '8x 4090 pcie4, 2 sockets'"

NetworkKind = Literal["infiniband", "roce", "efa", "ethernet"]
FabricWord = Literal["nvswitch", "mesh", "cube", "pairs", "none"]


class Network(Struct, frozen=True):
    """Network adapters of each host."""

    kind: NetworkKind
    count: int
    gigabits: float  # per second, of one adapter


class Cpu(Struct, frozen=True):
    """A processor as people name it, with what tells NCCL how fast the link between its sockets is."""

    vendor: str | None = None  # GenuineIntel, AuthenticAMD, ARM
    name: str | None = None
    family: int | None = None
    model_number: int | None = None


class Words(Struct, frozen=True, kw_only=True):
    """What the words after the GPUs say; None where they don't."""

    nodes: int | None = None
    fabric: FabricWord | None = None
    generation: int | None = None
    width: int | None = None
    switch: int | None = None  # GPUs below one PCIe switch
    sockets: int | None = None
    numa: int | None = None
    cpu: Cpu | None = None
    cpus: int | None = None
    cores: int | None = None
    ram: int | None = None
    virtual: bool | None = None
    peer_to_peer: bool | None = None
    networks: tuple[Network, ...] = ()


_NETWORKS: dict[str, NetworkKind] = {
    "ib": "infiniband",
    "infiniband": "infiniband",
    "roce": "roce",
    "efa": "efa",
    "eth": "ethernet",
    "ethernet": "ethernet",
}
_INFINIBAND_RATES = {"edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}  # Gb/s of four lanes
_BYTES = {"g": 1e9, "gb": 1e9, "gib": 2.0**30, "t": 1e12, "tb": 1e12, "tib": 2.0**40}
# Model numbers of Intel's family 6, as /proc/cpuinfo has them.
_XEONS = {
    "haswell": 63,
    "broadwell": 79,
    "skylake": 85,
    "cascade lake": 85,
    "ice lake": 106,
    "sapphire rapids": 143,
    "granite rapids": 173,
    "emerald rapids": 207,
}

_SIZE = r"(\d{1,6}(?:\.\d{1,3})?)\s*(g|gb|gib|t|tb|tib)"
_RATE = r"(\d{1,5}(?:\.\d{1,3})?)(?:\s*(?:g|gb|gbe|gbit|gbps|gb/s|gbit/s))?"
_TIMES = r"(?:(\d{1,4})\s*x\s*)?"
_KIND = f"({'|'.join(_NETWORKS)})"
_XEON = (
    rf"platinum|gold|silver|bronze|max|scalable|{'|'.join(_XEONS)}|e[57]-\d{{4}}(?:\s*v[2-4])?|\d{{4}}[a-z]{{0,2}}\+?"
)
_EPYC = r"naples|rome|milan|genoa|bergamo|turin|[79][\da-z]{3}[a-z]?"
_OTHER_UNIT = r"(?!\s*(?:sockets?|numa|v?cpus?|cores?|nodes?|hosts?|x)\b)"

Read = Callable[[re.Match[str]], Words]


def _says(**fields: Any) -> Read:
    return lambda _match: Words(**fields)


def _number(field: str) -> Read:
    return lambda match: structs.replace(Words(), **{field: int(next(group for group in match.groups() if group))})


def _pcie(match: re.Match[str]) -> Words:
    generation, width = match.groups()
    return Words(generation=int(generation), width=int(width) if width else None)


def _ram(match: re.Match[str]) -> Words:
    number, unit = (group for group in match.groups() if group)
    return Words(ram=int(float(number) * _BYTES[unit]))


def _network(kind: str, count: str | None, gigabits: float | str) -> Words:
    return Words(networks=(Network(_NETWORKS[kind], int(count or 1), float(gigabits)),))


def _xeon(match: re.Match[str]) -> Words:
    model_number = next((number for name, number in _XEONS.items() if name in match[1]), None)
    name = _proper(f"Intel Xeon{match[1]}")
    return Words(cpu=Cpu("GenuineIntel", name, None if model_number is None else 6, model_number))


def _amd(match: re.Match[str]) -> Words:
    return Words(cpu=Cpu("AuthenticAMD", _proper(f"AMD {match[1]}")))


def _proper(name: str) -> str:
    """Write a processor's name as its maker does: Intel Xeon Platinum 8480C, AMD EPYC Milan."""
    words = (word.upper() if re.search(r"\d|^(?:amd|epyc)$", word, re.IGNORECASE) else word for word in name.split())
    return re.sub(r"\bV(?=\d$)", "v", " ".join(word[0].upper() + word[1:] for word in words))


# The first that fits the text where a word begins wins, so what is longer stands first.
_WORDS: tuple[tuple[str, Read], ...] = (
    (r"nvswitch(?:es)?", _says(fabric="nvswitch")),
    (r"(?:hybrid )?cube(?:[ -]?mesh)?", _says(fabric="cube")),
    (r"(?:nvlink )?(?:pairs|paired|bridges?|bridged)", _says(fabric="pairs")),
    (r"no nvlink", _says(fabric="none")),
    (r"(?:nvlink )?(?:full )?mesh|nvlink", _says(fabric="mesh")),
    (r"(?:pcie\s*(?:gen|g)?|gen)\s*([1-6])(?:\.0)?(?:\s*x\s*(16|8|4|2|1))?", _pcie),
    (r"(?:pcie\s*)?x(16|8|4|2|1)", _number("width")),
    (r"(?:pcie )?switch(?:es)? (?:of )?(\d{1,3})" + _OTHER_UNIT, _number("switch")),
    (r"(\d{1,3}) (?:gpus )?per (?:pcie )?switch", _number("switch")),
    (r"(?:pcie )?switch(?:es)?", _says(switch=2)),
    (r"(\d{1,3})[ -]?sockets?|sockets? (\d{1,3})", _number("sockets")),
    (r"single[ -]socket", _says(sockets=1)),
    (r"dual[ -]socket", _says(sockets=2)),
    (r"numa (?:nodes )?(\d{1,3})|(\d{1,3}) ?numa(?: nodes?)?", _number("numa")),
    (r"(\d{1,6}) ?(?:nodes?|hosts?|machines?|servers?)", _number("nodes")),
    (r"(\d{1,5}) ?v?cpus?|v?cpus? (\d{1,5})", _number("cpus")),
    (r"(\d{1,5}) ?cores?", _number("cores")),
    (rf"{_SIZE} ?(?:of )?(?:ram|memory)|(?:ram|memory) {_SIZE}", _ram),
    (rf"{_KIND}\s*{_TIMES}{_RATE}", lambda match: _network(match[1], match[2], match[3])),
    (rf"{_TIMES}{_RATE} {_KIND}", lambda match: _network(match[3], match[1], match[2])),
    (
        rf"(?:ib |infiniband )?{_TIMES}({'|'.join(_INFINIBAND_RATES)})",
        lambda match: _network("ib", match[1], _INFINIBAND_RATES[match[2]]),
    ),
    (r"vm|virtual(?: machine)?", _says(virtual=True)),
    (r"bare[ -]?metal", _says(virtual=False)),
    (r"(?:no|without) p2p|p2p off", _says(peer_to_peer=False)),
    (rf"(?:intel )?xeon((?: (?:{_XEON}))*)", _xeon),
    (rf"(?:amd )?(epyc(?: (?:{_EPYC}))*)", _amd),
    (r"(?:amd )?((?:threadripper|ryzen)(?: (?:pro|[3579]|\d{4}[a-z]{0,3}))*)", _amd),
    (r"amd", _says(cpu=Cpu("AuthenticAMD"))),
    (r"intel", _says(cpu=Cpu("GenuineIntel"))),
    (r"(?:nvidia )?grace", _says(cpu=Cpu("ARM", "NVIDIA Grace (Neoverse-V2)"))),
)
_COMPILED = tuple((re.compile(rf"(?:{pattern})(?=[\s,;]|$)"), read) for pattern, read in _WORDS)
_KNOWN: tuple[str, ...] = (
    "nvswitch",
    "nvlink",
    "mesh",
    "pairs",
    "bridge",
    "switch",
    "sockets",
    "numa",
    "cpus",
    "cores",
    "ram",
    "epyc",
)
_KNOWN += ("xeon", "threadripper", "grace", *_NETWORKS, "pcie3", "pcie4", "pcie5", "nodes", "vm")


def read_words(text: str, whole: str) -> Words:
    """Read the words that stand behind GPUs; `whole` is all of the description, for the errors.

    Raises AdvisorError that names the word not understood, or what is said twice and differently.
    """
    found = Words()
    rest = " ".join(re.sub(r"([,;])", r" \1 ", text.lower()).split())  # one space, so that patterns need no more
    while rest := rest.lstrip(" ,;"):
        matches = ((pattern.match(rest), read) for pattern, read in _COMPILED)
        match, read = next(((match, read) for match, read in matches if match), (None, None))
        if match is None or read is None:
            raise _not_understood(re.split(r"[ ,;]", rest, maxsplit=1)[0], whole)
        found = combined(found, read(match), whole)
        rest = rest[match.end() :]
    return found


def combined(one: Words, two: Words, whole: str) -> Words:
    """Join what two parts of a description say. Raises AdvisorError where they contradict each other."""
    changes: dict[str, Any] = {"networks": one.networks + two.networks}
    if len({network.kind for network in changes["networks"]}) < len(changes["networks"]):
        raise AdvisorError(f"{whole!r} gives one kind of network twice", EXAMPLES)
    for field, new in structs.asdict(two).items():
        old = getattr(one, field)
        if field == "networks" or new is None:
            continue
        if old is not None and old != new:
            raise AdvisorError(f"{whole!r} says two things of {field}: {old} and {new}", EXAMPLES)
        changes[field] = new
    return structs.replace(one, **changes)


def _not_understood(word: str, whole: str) -> AdvisorError:
    near = difflib.get_close_matches(word, _KNOWN, n=1, cutoff=0.7)
    hint = f"did you mean {near[0]}? {EXAMPLES}" if near else EXAMPLES
    return AdvisorError(f"{word!r} in {whole!r} is not understood", hint)

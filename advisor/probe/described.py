"""Read a machine described in words: '4x a10g pcie3x8', '2x8 h100 nvswitch, ib 8x400', '8x 4090 pcie4, 2 sockets'.

Grammar: `[HOSTS] GPUSx NAME [+ GPUSx NAME ...] [words], [words] ...`. HOSTS is `2x`, `2 nodes of`, `2 hosts x`; the x
after a number may be left out. Words, in any order:

    nvswitch            all GPUs of a host through NVSwitch (what modules since A100 have if nothing is said)
    nvlink, mesh        every pair directly, the links shared evenly; 8 GPUs of a DGX-1 as the hybrid cube mesh (what
                        older modules have); of cards: pairs
    cube                the hybrid cube mesh of a DGX-1, 8 GPUs or the first 4 of it
    pairs, bridge       bridges between GPU 0 and 1, 2 and 3, ...
    no nvlink           none
    pcieGxW, pcieG      PCIe generation and lanes of each GPU: pcie3x8, pcie4, 'pcie gen3 x8'; before a `+`, of the GPUs
                        there
    switch [of N]       N GPUs (2) below one PCIe switch
    N sockets           GPUs spread evenly over N sockets (default 1 up to 4 GPUs, else 2, unless NVSwitch)
    numa N              GPUs spread evenly over N NUMA nodes
    ib [Nx]RATE, roce [Nx]RATE, efa [Nx]RATE, eth [Nx]RATE
                        network adapters of each host and their rate in Gb/s: ib 8x400, 8x ndr
    SIZE ram            memory of each host: 512GB ram
    N cpus, N cores     logical and physical processors of each host
    epyc, xeon ...      the processor: 'epyc 7742', 'xeon sapphire rapids', 'threadripper', 'grace'
    vm, bare metal      a virtual machine or not
    no p2p              the driver lets no GPU reach another's memory
    N hosts             as HOSTS
"""

import re
from collections.abc import Iterator, Sequence
from itertools import permutations

from msgspec import structs

from advisor.probe.wiring import Group, check_fabric, choose_fabric, links_between, seats_of
from advisor.probe.words import EXAMPLES, Cpu, FabricWord, Words, combined, read_words
from advisor.rules.errors import AdvisorError
from advisor.rules.hardware import GpuModel, gpu_model
from advisor.rules.machine import Gpu, Host, Machine, Nic, Pcie, PeerAccess, Unknown

MOST_GPUS, MOST_NODES, MOST_NICS = 64, 100_000, 64
LONGEST = 1000  # characters of a description

# A number of GPUs has two digits at most, so that 8x4090 is no 8 hosts.
_HOSTS = re.compile(
    r"\s*(\d{1,6})\s*(?:(?:nodes?|hosts?|machines?|servers?)\b\s*(?:of\b|with\b|x|[,:])?|x(?=\s*\d{1,2}(?:\s*x|\s)))",
    re.IGNORECASE,
)
_COUNT = re.compile(r"\s*(\d{1,6})(?:\s*x\s*|\s+)(?=[a-z0-9])", re.IGNORECASE)
_FILE_NAME = re.compile(r".*(?<!gb)(?<!gbit)/.*|.*\.[a-z]{2,5}\s*", re.IGNORECASE | re.DOTALL)
_NEXT_GPUS = re.compile(r"\s\+\s*(?=\d)|\+(?=\s*\d+\s*x)", re.IGNORECASE)
# "16 cpus" and "512GB ram" behind a GPU's name are no part of it.
_QUANTITY = re.compile(
    r"\d+\s+(?:sockets?|v?cpus?|cores?|nodes?|hosts?|machines?|servers?|numa|x)\b|\d+[gt]i?b?\s+(?:of\s+)?(?:ram|memory)\b",
    re.IGNORECASE,
)


def looks_described(text: str) -> bool:
    """Say whether a text begins like a description: a number of GPUs, then a word."""
    if len(text) > LONGEST or _FILE_NAME.fullmatch(text):
        return False
    return _COUNT.match(split_hosts(text)[1]) is not None


def machine_from_description(text: str) -> Machine:
    """Build the machine that the words describe; what they leave open is listed as unknown.

    Raises AdvisorError that names the word not understood.
    """
    text = text.strip()
    if len(text) > LONGEST:
        raise AdvisorError(f"a description of {len(text)} characters", f"say it in {LONGEST}; {EXAMPLES}")
    hosts, rest = split_hosts(text)
    groups = [_read_group(part, text) for part in _NEXT_GPUS.split(rest)]
    words = Words(nodes=hosts)
    for group in groups[:-1]:
        words = combined(words, structs.replace(group.words, generation=None, width=None), text)
    words = combined(words, groups[-1].words, text)
    _check(words, groups)
    return _machine(text, groups, words)


def split_hosts(text: str) -> tuple[int | None, str]:
    """Split a number of hosts, if there is one, from the description of each: `2x8 h100`, `2 nodes of 8x h100`."""
    hosts = _HOSTS.match(text)
    return (int(hosts[1]), text[hosts.end() :]) if hosts else (None, text)


def _read_group(text: str, whole: str) -> Group:
    start = _COUNT.match(text)
    if start is None:
        raise AdvisorError(f"{text.strip() or whole!r} does not begin with a number of GPUs", EXAMPLES)
    model, rest = _name(text[start.end() :])
    return Group(int(start[1]), model, read_words(rest, whole))


def _name(text: str) -> tuple[GpuModel, str]:
    """Split off the longest run of words that names a GPU."""
    text = re.sub(r"\b(\d+) (gb|gib|tb|tib)\b", r"\1\2", text, flags=re.IGNORECASE)
    words = list(re.finditer(r"[^\s,;]+", text))
    for length in range(min(5, len(words)), 0, -1):
        last = words[length - 1]
        model = gpu_model(" ".join(word[0] for word in words[:length]))
        if model is not None and (length == 1 or not _QUANTITY.match(text, last.start())):
            return model, text[last.end() :]
    raise AdvisorError(f"no GPU called {words[0][0]!r} is known" if words else "no GPU is named", EXAMPLES)


def _check(words: Words, groups: Sequence[Group]) -> None:
    count, nodes = sum(group.size for group in groups), 1 if words.nodes is None else words.nodes
    if not (all(group.size >= 1 for group in groups) and count <= MOST_GPUS and 1 <= nodes <= MOST_NODES):
        hint = f"give 1 to {MOST_GPUS} GPUs on each of 1 to {MOST_NODES} hosts; {EXAMPLES}"
        raise AdvisorError(f"{nodes} x {count} GPUs can't be described", hint)
    for what, number in (("sockets", words.sockets), ("NUMA nodes", words.numa)):
        if number is not None and not 1 <= number <= max(2, count):
            raise AdvisorError(f"{count} GPUs on {number} {what}", f"give a number of {what} up to that of the GPUs")
    if words.numa and words.sockets and words.numa % words.sockets:
        raise AdvisorError(f"{words.numa} NUMA nodes on {words.sockets} sockets", "give each socket as many nodes")
    if 0 in (words.switch, words.ram, words.cpus, words.cores):
        raise AdvisorError("a number in the description is 0", EXAMPLES)
    if any(not (1 <= net.count <= MOST_NICS and 0 < net.gigabits <= 10_000) for net in words.networks):
        raise AdvisorError("that network is more than can be described", EXAMPLES)
    for group in groups:
        model = group.model
        if count > 1 and not (group.words.generation or words.generation or model.pcie_generation):
            name = model.name.removeprefix("NVIDIA ")
            raise AdvisorError(f"a {name} is alone in its host", f"say '2 hosts of 1x {name.lower()}'")
    check_fabric(words.fabric, groups)


def _machine(text: str, groups: Sequence[Group], words: Words) -> Machine:
    count = sum(group.size for group in groups)
    fabrics = [choose_fabric(words, groups, group) for group in groups]
    sockets = words.sockets or (1 if count <= 4 or "nvswitch" in fabrics else 2)
    domains, told = words.numa or sockets, words.numa is not None or words.sockets is not None
    seats = list(seats_of(groups, domains, words.switch))
    gpus = tuple(
        _gpu(index, groups[seat.group], words, seat.domain if told else None) for index, seat in enumerate(seats)
    )
    cpu = words.cpu or Cpu()
    return Machine(
        gpus=gpus,
        nics=tuple(_nics(words, domains if told else None)),
        links=tuple(links_between(gpus, seats, groups, fabrics)),
        peer_access=_no_peer_access(gpus) if words.peer_to_peer is False else (),
        host=Host(
            cpu=cpu.name,
            cpu_vendor=cpu.vendor,
            cpu_family=cpu.family,
            cpu_model_number=cpu.model_number,
            sockets=words.sockets,
            numa_nodes=words.numa,
            cores=words.cores,
            cpus=words.cpus,
            memory=words.ram,
            virtual=words.virtual,
        ),
        nodes=words.nodes or 1,
        unknown=tuple(_left_open(words, sockets, next((fabric for fabric in fabrics if fabric), None))),
        source=f"description: {text}",
    )


def _gpu(index: int, group: Group, words: Words, numa: int | None) -> Gpu:
    model = group.model
    generation = group.words.generation or words.generation or model.pcie_generation
    width = group.words.width or words.width or model.pcie_width
    return Gpu(
        id=f"GPU{index}",
        index=index,
        name=model.name,
        memory=model.memory,
        compute_capability=model.compute_capability,
        pcie=Pcie(generation_max=generation, width_max=width, width=width) if generation else None,
        numa=numa,
    )


def _nics(words: Words, domains: int | None) -> Iterator[Nic]:
    first = 0
    for network in words.networks:
        for place in range(network.count):
            yield Nic(
                id=f"NIC{first + place}",
                kind=network.kind,
                bandwidth=network.gigabits * 1e9 / 8,
                numa=None if domains is None else place * domains // network.count,
            )
        first += network.count


def _no_peer_access(gpus: Sequence[Gpu]) -> tuple[PeerAccess, ...]:
    return tuple(
        PeerAccess(a=a.id, b=b.id, capability=capability, status="NS")
        for a, b in permutations(gpus, 2)
        for capability in ("read", "write")
    )


def _left_open(words: Words, sockets: int, fabric: FabricWord | None) -> Iterator[Unknown]:
    if fabric and not words.fabric:
        wired = "the cube mesh of a DGX-1" if fabric == "cube" else fabric
        yield Unknown(what="NVLink", why=f"the description does not say how it is wired; {wired} taken")
    if words.ram is None:
        yield Unknown(what="host memory", why="the description does not give it; add for example '512GB ram'")
    if words.cpus is None:
        yield Unknown(what="processors", why="the description does not give them; add for example '64 cpus'")
    if words.sockets is None and words.numa is None:
        yield Unknown(what="sockets", why=f"the description does not give them; {sockets} taken")
    if (words.nodes or 1) > 1 and not words.networks:
        yield Unknown(what="network", why="the description does not give it; add for example 'ib 8x400'")

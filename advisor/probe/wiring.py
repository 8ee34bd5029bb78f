"""How the GPUs of a described host are joined: by which NVLinks, and through which sockets and PCIe switches."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from advisor.probe.words import EXAMPLES, FabricWord, Words
from advisor.rules.errors import AdvisorError
from advisor.rules.hardware import GpuModel
from advisor.rules.links import kind_of_code
from advisor.rules.machine import Gpu, Link

# NVLinks between the 8 GPUs of a DGX-1 with V100; with P100 one link each. `nvidia-smi topo -m` of such machines.
_CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
    (0, 4): 2, (1, 5): 2, (2, 6): 1, (3, 7): 1,
}  # fmt: skip


class Group(NamedTuple):
    """GPUs of one kind, and what is said of them alone."""

    size: int
    model: GpuModel
    words: Words


class Seat(NamedTuple):
    """Where one GPU sits."""

    group: int
    place: int  # in its group
    domain: int  # NUMA node, or socket where no nodes are told
    switch: int | None  # of its domain; None where no switches are told


def check_fabric(fabric: FabricWord | None, groups: Sequence[Group]) -> None:
    """Raise AdvisorError where the word for the NVLinks does not fit the GPUs."""
    if fabric in (None, "none"):
        return
    if not any(group.model.nvlink_links for group in groups):
        raise AdvisorError(f"{groups[0].model.name} has no NVLink", f"describe its PCIe links; {EXAMPLES}")
    if fabric == "nvswitch" and len(groups) > 1:
        raise AdvisorError("different GPUs share no NVSwitch", EXAMPLES)
    for group in groups:
        links, others = group.model.nvlink_links, group.size - 1
        if fabric == "cube" and not (group.size in (4, 8) and links in (4, 6)):
            raise AdvisorError("the cube mesh joins 4 or 8 GPUs of a DGX-1", "say nvlink or nvswitch")
        if fabric == "mesh" and _usual_fabric(group) and others > links and not _is_cube(group):
            raise AdvisorError(f"{links} NVLinks don't join a GPU with {others} others", "say nvswitch")


def _usual_fabric(group: Group) -> FabricWord | None:
    """Return how hosts of a GPU on a module are wired; None for cards, which have bridges only if said so."""
    model = group.model
    kind = set(model.key.split("-"))
    if not model.nvlink_links or kind & {"pcie", "nvl"} or (model.nvlink_links < 6 and "sxm" not in kind):
        return None
    joined = _is_cube(group) or group.size - 1 <= model.nvlink_links
    return "mesh" if joined and float(model.compute_capability or 0) < 8.0 else "nvswitch"


def _is_cube(group: Group) -> bool:
    return group.size == 8 and group.model.nvlink_links in (4, 6)


def choose_fabric(words: Words, groups: Sequence[Group], group: Group) -> FabricWord | None:
    """Choose how the GPUs of a group are joined, by the word or as usual."""
    if words.fabric == "none" or not group.model.nvlink_links:
        return None
    usual = _usual_fabric(group) if len(groups) == 1 else None
    if words.fabric == "mesh":
        return "pairs" if usual is None else "cube" if _is_cube(group) else "mesh"
    if words.fabric is None and usual == "mesh":
        return "cube" if _is_cube(group) else "mesh"
    return words.fabric or usual


def seats_of(groups: Sequence[Group], domains: int, switch: int | None) -> Iterator[Seat]:
    """Spread the GPUs evenly over the domains, and those of a domain over PCIe switches of `switch` GPUs each."""
    members = [(number, place) for number, group in enumerate(groups) for place in range(group.size)]
    filled: Counter[int] = Counter()
    for index, (number, place) in enumerate(members):
        domain = index * domains // len(members)
        yield Seat(number, place, domain, filled[domain] // switch if switch else None)
        filled[domain] += 1


def links_between(
    gpus: Sequence[Gpu], seats: Sequence[Seat], groups: Sequence[Group], fabrics: Sequence[FabricWord | None]
) -> Iterator[Link]:
    """Yield a link for each pair, with the code that nvidia-smi would print."""
    for (gpu, seat), (other, there) in combinations(zip(gpus, seats, strict=True), 2):
        code = _nvlink_code(seat, there, groups[seat.group], fabrics[seat.group]) or _pcie_code(seat, there)
        kind = kind_of_code(code)
        assert kind is not None  # both make codes of the table alone
        yield Link(a=gpu.id, b=other.id, code=code, kind=kind)


def _nvlink_code(a: Seat, b: Seat, group: Group, fabric: FabricWord | None) -> str | None:
    """Name the link between two GPUs that is not PCIe; `a` comes first and is of the group."""
    links = group.model.nvlink_links
    if a.group != b.group:
        return None
    if not links and group.model.link_rate:  # AMD: every pair over Infinity Fabric
        return "XGMI"
    if fabric == "nvswitch":
        return f"NV{links}"
    if fabric == "mesh":
        return f"NV{links // (group.size - 1)}"
    if fabric == "cube" and (a.place, b.place) in _CUBE_MESH:
        return f"NV{_CUBE_MESH[a.place, b.place] if links == 6 else 1}"
    return f"NV{links}" if fabric == "pairs" and a.place // 2 == b.place // 2 else None


def _pcie_code(a: Seat, b: Seat) -> str:
    if a.domain != b.domain:
        return "SYS"
    return "PIX" if a.switch is not None and a.switch == b.switch else "PHB"

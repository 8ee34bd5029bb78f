"""What makes the GPUs of one machine unequal: models, memory, slots, and links that only some of them have."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Literal

from advisor.rules.format import bandwidth, folded, ids, memory
from advisor.rules.links import attachment
from advisor.rules.machine import Gpu, LinkKind, Machine, Value
from advisor.rules.topology import Level, island_levels

WORDS: dict[LinkKind, str] = {  # GPU0-1 are joined by, or share, ...
    "nvlink": "are joined by NVLink",
    "xgmi": "are joined by XGMI",
    "c2c": "are joined chip to chip",
    "pcie-switch": "share a PCIe switch",
    "pcie-switches": "are joined by PCIe switches",
    "host-bridge": "share a host bridge",
    "numa-node": "share a NUMA node",
    "inter-socket": "are joined between NUMA nodes",
    "host-memory": "are joined by host memory",
    "network": "are joined by the network",
}


class Asymmetry(Value, frozen=True, kw_only=True):
    """One way in which the GPUs are not equal: the groups that are, and the number that tells them apart."""

    what: Literal["model", "memory", "slot", "links"]
    groups: tuple[tuple[str, ...], ...]
    values: tuple[float | None, ...] = ()  # of each group: bytes of memory, bytes per second of the slot, GPUs joined
    message: str


def asymmetries(machine: Machine) -> tuple[Asymmetry, ...]:
    """List what is uneven, the GPUs themselves first; nothing for a box of equal GPUs with equal links."""
    if len(machine.gpus) < 2:
        return ()
    return (*_models(machine.gpus), *_slots(machine.gpus), *_links(machine))


def _models(gpus: Sequence[Gpu]) -> Iterator[Asymmetry]:
    """Tell models apart, or sizes of memory where the model is the same; 1 % is what ECC or a driver takes."""
    if any(gpu.name is None for gpu in gpus) and any(gpu.memory is None for gpu in gpus):
        return
    names = _groups(gpus, lambda gpu: gpu.name)
    sizes = _groups(gpus, lambda gpu: gpu.memory and round(gpu.memory / 2**30))
    if len(names) > 1:
        yield Asymmetry(
            what="model",
            groups=tuple(map(_names, names)),
            values=tuple(group[0].memory for group in names),
            message="; ".join(f"{ids(_names(g))} {_verb(g)} {g[0].name or 'of unknown model'}" for g in names),
        )
    elif len(sizes) > 1:
        yield Asymmetry(
            what="memory",
            groups=tuple(map(_names, sizes)),
            values=tuple(group[0].memory for group in sizes),
            message="; ".join(f"{ids(_names(g))} {_has(g)} {memory(g[0].memory)}" for g in sizes),
        )


def _slots(gpus: Sequence[Gpu]) -> Iterator[Asymmetry]:
    """Tell GPUs of one model apart by what their PCIe slots give them."""
    groups = _groups(gpus, attachment)
    speeds = [attachment(group[0]) for group in groups]
    if len(groups) > 1 and None not in speeds and len({gpu.name for gpu in gpus}) == 1:
        said = (f"{ids(_names(g))} {_has(g)} {bandwidth(s)}" for g, s in zip(groups, speeds, strict=True))
        yield Asymmetry(
            what="slot",
            groups=tuple(map(_names, groups)),
            values=tuple(speeds),
            message=f"by PCIe slot {'; '.join(said)}",
        )


def _links(machine: Machine) -> Iterator[Asymmetry]:
    """Name the levels whose islands differ in size: 4 and 2 GPUs on two sockets, two with a bridge and one alone."""
    for level in island_levels(machine):
        sizes = [len(island) for island in level.islands]
        if len(set(sizes)) > 1:
            yield Asymmetry(what="links", groups=level.islands, values=tuple(map(float, sizes)), message=_uneven(level))


def _uneven(level: Level) -> str:
    joined = [island for island in level.islands if len(island) > 1]
    alone = [island[0] for island in level.islands if len(island) == 1]
    words = WORDS[level.kind]
    if not alone:
        sizes = " + ".join(str(len(island)) for island in joined)
        return f"{sizes} GPUs {words}: {', '.join(map(ids, joined))}"
    verb = ("is", "are") if words.startswith("are") else ("does", "do")
    said = " and ".join(map(ids, joined)) + " each" * (len(joined) > 1)
    return f"{said} {words}, {ids(alone)} {verb[len(alone) > 1]} not"


def _groups(gpus: Sequence[Gpu], key: Callable[[Gpu], Hashable]) -> list[list[Gpu]]:
    return [same for _, same in folded(gpus, key)]


def _names(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    return tuple(gpu.id for gpu in gpus)


def _verb(gpus: Sequence[Gpu]) -> str:
    return "is" if len(gpus) == 1 else "are"


def _has(gpus: Sequence[Gpu]) -> str:
    return "has" if len(gpus) == 1 else "have"

"""What several devices have to share: PCIe switches, host bridges, the link between sockets, and the NICs."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from advisor.rules.format import folded
from advisor.rules.machine import LinkKind, Machine, Value
from advisor.rules.pcie_tree import Tree, pcie_tree
from advisor.rules.topology import KINDS, gpu_links

_SHARED: tuple[LinkKind, ...] = ("pcie-switch", "pcie-switches", "host-bridge")


class Shared(Value, frozen=True, kw_only=True):
    """A link that several GPUs need at once, for instance when all of them copy from host memory."""

    kind: LinkKind
    name: str
    gpus: tuple[str, ...]
    nics: tuple[str, ...] = ()
    bandwidth: float | None = None  # bytes per second, one direction, for all of them together


class NearNics(Value, frozen=True, kw_only=True):
    """The NICs that serve a GPU, and by which path: `inter-socket` means that none is near."""

    gpu: str
    nics: tuple[str, ...]
    kind: LinkKind


def shared_links(machine: Machine) -> tuple[Shared, ...]:
    """List what two or more GPUs share on their way to the host, the narrowest first, then the link between sockets."""
    tree = pcie_tree(machine)
    return (*_on_the_way_up(machine, tree), *_between_sockets(machine, tree))


def nearest_nics(machine: Machine) -> tuple[NearNics, ...]:
    """Say which NICs serve which GPU: those with the best kind of path, dealt out among GPUs with the same choice.

    NICs of plain Ethernet count only where there are no others, as in NCCL.
    """
    usable = [nic.id for nic in machine.nics if nic.kind != "ethernet"] or [nic.id for nic in machine.nics]
    kinds = {(k.a, k.b): k.kind for k in machine.links} | {(k.b, k.a): k.kind for k in machine.links}
    choices: list[NearNics] = []
    for gpu in machine.gpus:
        paths = {nic: kinds[gpu.id, nic] for nic in usable if (gpu.id, nic) in kinds}
        if paths:
            best = min(paths.values(), key=KINDS.index)
            choices.append(NearNics(gpu=gpu.id, nics=tuple(n for n in paths if paths[n] == best), kind=best))
    dealt: dict[str, NearNics] = {}
    for _, same in folded(choices, lambda choice: (choice.nics, choice.kind)):
        for place, choice in enumerate(same):
            dealt[choice.gpu] = replace(choice, nics=_share(choice.nics, place, len(same)))
    return tuple(dealt[choice.gpu] for choice in choices)


def _share(nics: Sequence[str], place: int, gpus: int) -> tuple[str, ...]:
    """Return the NICs of one of several GPUs: a part of its own, or one that it shares where there are too few."""
    start = place * len(nics) // gpus
    end = (place + 1) * len(nics) // gpus
    return tuple(nics[start : max(end, start + 1)])


def _on_the_way_up(machine: Machine, tree: Tree) -> Iterator[Shared]:
    below = tree.below()
    seen: set[tuple[str, ...]] = set()
    for node in tree.nodes:
        gpus = tuple(gpu.id for gpu in machine.gpus if gpu.id in below[node.id])
        kind = next((kind for kind in _SHARED if kind == node.kind), None)
        if kind is None or len(gpus) < 2 or gpus in seen:
            continue
        seen.add(gpus)
        nics = tuple(nic.id for nic in machine.nics if nic.id in below[node.id])
        yield Shared(kind=kind, name=node.label, gpus=gpus, nics=nics, bandwidth=node.bandwidth)


def _between_sockets(machine: Machine, tree: Tree) -> Iterator[Shared]:
    """Name the GPUs of different NUMA nodes that nothing better than PCIe joins."""
    crossing = {gpu for k in gpu_links(machine).values() if k.kind == "inter-socket" for gpu in (k.a, k.b)}
    if crossing:
        yield Shared(
            kind="inter-socket",
            name="link between NUMA nodes",
            gpus=tuple(gpu.id for gpu in machine.gpus if gpu.id in crossing),
            bandwidth=max((b.bandwidth for b in tree.between if b.bandwidth is not None), default=None),
        )

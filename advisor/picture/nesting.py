"""What holds what: the PCIe tree of a machine as frames inside frames."""

from collections.abc import Iterator, Sequence

from advisor.rules.machine import Link, LinkKind, Value
from advisor.rules.pcie_tree import Node, Tree, TreeKind

TREE_KINDS: tuple[LinkKind, ...] = ("pcie-switch", "pcie-switches", "host-bridge", "numa-node")


class Part(Value, frozen=True, kw_only=True):
    """A frame: the devices directly in it, and the frames inside. The host itself has no `node`."""

    node: Node | None = None
    devices: tuple[str, ...] = ()
    parts: tuple["Part", ...] = ()

    def members(self) -> tuple[str, ...]:
        """List all devices, those of inner frames included."""
        return self.devices + tuple(device for part in self.parts for device in part.members())


def nested(tree: Tree) -> Part:
    """Sort the devices of one host into frames."""
    children: dict[str | None, list[Node]] = {}
    for node in tree.nodes:
        children.setdefault(node.parent, []).append(node)

    def part(node: Node | None) -> Part:
        inside = children.get(node.id if node else None, [])
        return Part(
            node=node,
            devices=tuple(child.id for child in inside if is_device(child.kind)),
            parts=tuple(part(child) for child in inside if not is_device(child.kind)),
        )

    return part(None)


def is_device(kind: TreeKind) -> bool:
    return kind in ("gpu", "nic")


def smallest(part: Part, devices: frozenset[str]) -> Part:
    """Find the smallest frame that holds these devices."""
    inner = next((inner for inner in part.parts if devices <= set(inner.members())), None)
    return part if inner is None else smallest(inner, devices)


def sides(part: Part, links: Sequence[Link]) -> Iterator[tuple[str, ...]]:
    """Yield the groups of devices between which these links run: the largest frames that none of them is inside of."""
    members = set(part.members())
    if not any(link.a in members and link.b in members for link in links):
        if any(link.a in members or link.b in members for link in links):
            yield part.members()
        return
    for device in part.devices:
        if any(device in (link.a, link.b) for link in links):
            yield (device,)
    for inner in part.parts:
        yield from sides(inner, links)

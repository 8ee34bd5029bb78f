"""What holds the best ring back: the hops that the picture marks."""

from collections.abc import Iterable
from typing import NamedTuple

from advisor.rules.fabric import Fabric
from advisor.rules.machine import Link, Machine
from advisor.rules.rings import hops

Pair = frozenset[str]

SLOWEST = "slowest of the ring"
ALIKE = "every hop of the ring"


class Mark(NamedTuple):
    """Pairs of devices on the ring, and what they are to it."""

    pairs: frozenset[Pair] = frozenset()
    words: str = SLOWEST

    def hits(self, links: Iterable[Link]) -> bool:
        return any(frozenset((link.a, link.b)) in self.pairs for link in links)


def ring_mark(machine: Machine, fabric: Fabric) -> Mark:
    """Mark the hops of the best ring that are as slow as its slowest link, which may be all of them."""
    worst = fabric.slowest_link
    if fabric.ring is None or worst is None:
        return Mark()
    around = {frozenset(hop) for hop in hops(fabric.ring.order)}
    alike = {
        frozenset((link.a, link.b))
        for link in machine.links
        if (link.kind, link.code, link.bandwidth) == (worst.kind, worst.code, worst.bandwidth)
    }
    pairs = frozenset(around & alike)
    return Mark(pairs, ALIKE if pairs == around else SLOWEST)

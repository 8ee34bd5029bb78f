"""The ring over all GPUs crosses links much slower than those inside its islands.

## What it finds
GPUs that form islands of fast links (NVLink pairs in a PCIe box, two sockets of four), where the best ring over all of
them has a hop at less than half of the bandwidth inside the islands.

## Why it matters
A ring collective runs at the speed of its slowest hop. Strategies that keep heavy traffic inside an island (hybrid
sharding), or that use one island alone, can beat the whole machine.

## What to do
Nothing by hand: `advisor recommend` prices the islands and hybrid sharding beside all GPUs.

## Source
NCCL's ring algorithm, https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/
"""

from collections.abc import Iterator

from advisor.rules.format import bandwidth
from advisor.rules.machine import Machine
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.topology import islands, slowest_link


@rule("NET101", "ring-leaves-the-islands")
def check(case: Case) -> Iterator[Finding]:
    groups = islands(case.machine)
    slowest = slowest_link(case.machine, [gpu.id for gpu in case.machine.gpus])
    inside = island_bandwidth(case.machine, groups)
    if len(groups) < 2 or inside is None or slowest is None or slowest.bandwidth is None:
        return
    if slowest.bandwidth > inside / 2:
        return
    sizes = sorted({len(island) for island in groups})
    yield Finding(
        code="NET101",
        name="ring-leaves-the-islands",
        severity="info",
        message=(
            f"{len(groups)} islands of {' or '.join(map(str, sizes))} GPUs have {bandwidth(inside)} inside, "
            f"but the ring over all crosses {slowest.a}-{slowest.b} ({slowest.code}) at {bandwidth(slowest.bandwidth)}"
        ),
        facts={"inside": inside, "across": slowest.bandwidth, "islands": len(groups)},
        remedy="advisor recommend prices single islands and hybrid sharding beside all GPUs",
    )


def island_bandwidth(machine: Machine, groups: tuple[tuple[str, ...], ...]) -> float | None:
    """Return the slowest direct link inside the islands, bytes per second; None where nothing is linked or known."""
    home = {gpu: index for index, island in enumerate(groups) for gpu in island}
    inside = [
        link.bandwidth
        for link in machine.links
        if link.a in home and link.b in home and home[link.a] == home[link.b] and link.bandwidth is not None
    ]
    return min(inside, default=None)

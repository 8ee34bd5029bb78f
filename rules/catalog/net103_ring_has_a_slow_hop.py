"""One hop of the ring is much slower than the other links of the same kind.

## What it finds
GPUs that are all joined in one island, of which the best ring still has a hop at less than half of the fastest link: a
card in a narrow slot, or a pair that was measured slow.

## Why it matters
Each byte of a ring collective crosses every hop, so that all GPUs move at the speed of the slowest one.

## What to do
Move the card to a wider slot or mend the link; until then compare the step time without it: `advisor recommend --gpus
N` takes the GPUs with the best ring.

## Source
NCCL's ring algorithm, https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/
"""

from collections.abc import Iterator

from advisor.rules.format import bandwidth
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.topology import gpu_links, islands, slowest_link


@rule("NET103", "ring-has-a-slow-hop")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    speeds = [link.bandwidth for link in gpu_links(machine).values()]
    best = max((speed for speed in speeds if speed is not None), default=None)
    if best is None or None in speeds or len(machine.gpus) < 3 or min(filter(None, speeds), default=0) >= best / 2:
        return
    if len(islands(machine)) != 1:
        return  # NET101 speaks of these
    slowest = slowest_link(machine, [gpu.id for gpu in machine.gpus])
    if slowest is None or slowest.bandwidth is None or slowest.bandwidth >= best / 2:
        return
    measured = slowest.bandwidth_source == "measured"
    yield Finding(
        code="NET103",
        name="ring-has-a-slow-hop",
        severity="warning" if measured else "info",
        message=(
            f"the ring over all {len(machine.gpus)} GPUs crosses {slowest.a}-{slowest.b} ({slowest.code}) at "
            f"{bandwidth(slowest.bandwidth)}{', measured' if measured else ''}; other links have {bandwidth(best)}"
        ),
        facts={"slowest": slowest.bandwidth, "fastest": best, "hop": [slowest.a, slowest.b]},
        remedy=(
            f"look at the slots and links of {slowest.a} and {slowest.b}; compare with "
            f"advisor recommend --gpus {len(machine.gpus) - 1}"
        ),
    )

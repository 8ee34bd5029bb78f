"""GPUs reach their network adapter only through the link between sockets.

## What it finds
A job on several hosts, and GPUs whose nearest adapter hangs on another NUMA node (SYS in `nvidia-smi topo -m`).

## Why it matters
NCCL switches GPUDirect RDMA off across sockets, so that the data goes through host memory and over the link between
sockets, 10 to 40 GB/s for all GPUs together.

## What to do
Give each socket an adapter, or move the one there is. With fewer ranks than GPUs, take those near the adapter.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-net-gdr-level
"""

from collections.abc import Iterator

from advisor.rules.contention import nearest_nics
from advisor.rules.format import ids
from advisor.rules.machine import Machine
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("NET111", "nic-on-the-other-socket")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    if machine.nodes == 1 or (case.plan is not None and case.plan.nodes == 1) or not machine.nics:
        return
    far = _far(machine)
    if not far:
        return
    yield Finding(
        code="NET111",
        name="nic-on-the-other-socket",
        severity="info",
        message=(
            f"{ids(far)}, {len(far)} of {len(machine.gpus)} GPUs, have no network adapter on their own socket: their "
            "traffic between hosts crosses the link between sockets, without GPUDirect RDMA"
        ),
        facts={"far": far, "gpus": len(machine.gpus), "nics": len(machine.nics)},
        remedy="put an adapter on each socket; nvidia-smi topo -m must show PIX, PXB, PHB or NODE, not SYS, for one",
    )


def _far(machine: Machine) -> list[str]:
    """Name the GPUs that are far from each adapter: by their links, or else by NUMA nodes where all are known."""
    near = nearest_nics(machine)
    if near:
        return [choice.gpu for choice in near if choice.kind == "inter-socket"]
    homes = {nic.numa for nic in machine.nics}
    nodes = [gpu.numa for gpu in machine.gpus]
    if not all(isinstance(node, int) and node >= 0 for node in (*homes, *nodes)):
        return []
    return [gpu.id for gpu in machine.gpus if gpu.numa not in homes]

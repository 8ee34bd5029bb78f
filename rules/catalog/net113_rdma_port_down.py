"""The port of an RDMA adapter is down.

## What it finds
A machine of several hosts with InfiniBand or RoCE adapters whose port is not active.

## Why it matters
NCCL leaves such a port out by itself: with none left it falls back to TCP, with some left the other adapters carry the
traffic of all GPUs.

## What to do
Check cable, transceiver and switch port; `ibstat` must say Active. A port that is not meant for training may stay
down.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
"""

from collections.abc import Iterator

from advisor.rules.format import ids, plural
from advisor.rules.network import rdma_nics
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("NET113", "rdma-port-down")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    nics = rdma_nics(machine)
    down = [nic.name or nic.id for nic in nics if nic.state == "down"]
    if machine.nodes == 1 or not down:
        return
    left = len(nics) - len(down)
    what = f"{plural(left, 'adapter')} carry the traffic of {plural(len(machine.gpus), 'GPU')}"
    yield Finding(
        code="NET113",
        name="rdma-port-down",
        severity="warning" if left < len(machine.gpus) else "info",
        message=(
            f"the port of {ids(down)} is down, {len(down)} of {len(nics)} RDMA adapters: "
            f"{what if left else 'NCCL falls back to TCP between hosts'}"
        ),
        facts={"down": down, "active": left, "gpus": len(machine.gpus)},
        remedy=f"ibstat {down[0]}; check its cable, transceiver and switch port",
    )

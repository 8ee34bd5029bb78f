"""RDMA adapters of very different rates would share the traffic.

## What it finds
Several hosts with adapters of one kind, some of which have at most half the rate of the fastest: storage or management
adapters beside those for training.

## Why it matters
A ring runs at its slowest hop. Where NCCL takes a slow adapter for one of its channels, all wait for it, and training
competes with storage for that port.

## What to do
The plan sets NCCL_IB_HCA to leave out those of lower rate, and those whose port is down, if all devices have names and
you have set no value. `^=` names them exactly; a bare mlx5_1 would also take mlx5_10.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
"""

from collections.abc import Iterator

from advisor.rules.format import bandwidth, ids
from advisor.rules.network import rdma_nics, unset
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("NET114", "rdma-rates-differ")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    nics = [nic for nic in rdma_nics(machine) if nic.kind != "efa"]
    rates = [nic.bandwidth for nic in nics if nic.bandwidth is not None and nic.state != "down"]
    if machine.nodes == 1 or not rates:
        return
    fastest = max(rates)
    slow = [nic for nic in nics if nic.state != "down" and nic.bandwidth is not None and nic.bandwidth <= fastest / 2]
    if not slow:
        return
    out = [nic for nic in nics if nic.state == "down" or nic in slow]
    names = [nic.name for nic in out if nic.name is not None]
    env = unset(machine, {"NCCL_IB_HCA": f"^={','.join(names)}"}) if len(names) == len(out) else {}
    labels = [nic.name or nic.id for nic in slow]
    yield Finding(
        code="NET114",
        name="rdma-rates-differ",
        severity="info",
        message=(
            f"{ids(labels)} have {bandwidth(max(nic.bandwidth or 0 for nic in slow))}, the fastest RDMA adapters "
            f"{bandwidth(fastest)}"
            + (f"; the plan leaves out the slow ones with NCCL_IB_HCA={env['NCCL_IB_HCA']}" if env else "")
        ),
        facts={"slow": labels, "fastest": fastest} | ({"env": env} if env else {}),
        remedy=(
            "none needed; export NCCL_IB_HCA yourself to choose others"
            if env
            else "name the adapters for training: export NCCL_IB_HCA==mlx5_0,mlx5_1 (see ibstat)"
        ),
    )

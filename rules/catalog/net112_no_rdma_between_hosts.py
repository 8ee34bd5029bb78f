"""Hosts exchange gradients over TCP instead of RDMA.

## What it finds
Several hosts of which NCCL's log says "Using network Socket", or data-centre GPUs whose hosts have Ethernet cards
only.

## Why it matters
Over TCP one thread moves about 3.2 GB/s, an adapter of 400 Gb/s with GPUDirect RDMA 47. MPT-1B on 2 x 8 GPUs was eight
times slower than on one host until InfiniBand was in use. All GPUs show 100 % utilization meanwhile: waiting counts as
busy.

## What to do
`ibstat` and `ls /sys/class/infiniband` show whether there are RDMA devices. In a container pass /dev/infiniband in and
raise memlock. Unset NCCL_IB_DISABLE; on a cloud install the provider's NCCL plugin. Measure an all-reduce between the
hosts before tuning anything else.

## Source
https://github.com/mosaicml/llm-foundry/issues/336, https://github.com/pytorch/torchtitan/issues/676; rules/transport.py
"""

from collections.abc import Iterator

from advisor.rules.format import bandwidth
from advisor.rules.machine import Machine
from advisor.rules.network import only_ethernet, rdma_nics, said_sockets
from advisor.rules.nvlinks import is_module
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.transport import TCP_THREAD


@rule("NET112", "no-rdma-between-hosts")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    if machine.nodes == 1:
        return
    said = said_sockets(machine)
    idle = [nic.name or nic.id for nic in rdma_nics(machine) if nic.state != "down"]
    if not said and not (only_ethernet(machine) and any(is_module(gpu) for gpu in machine.gpus)):
        return
    what = "NCCL's log says that it uses network Socket" if said else "the hosts have Ethernet cards only"
    what += f", though {idle[0]} is there" if idle else ""
    yield Finding(
        code="NET112",
        name="no-rdma-between-hosts",
        severity="warning" if said else "info",
        message=(
            f"{machine.nodes} hosts and no RDMA between them: {what}; TCP moves about {bandwidth(TCP_THREAD)} per "
            "thread, and GPUs that wait show 100 % utilization"
        ),
        facts={"hosts": machine.nodes, "network": "Socket" if said else "ethernet", "rdma_devices": idle},
        remedy=_remedy(machine, idle),
    )


def _remedy(machine: Machine, idle: list[str]) -> str:
    first = "unset NCCL_IB_DISABLE; " if "NCCL_IB_DISABLE" in machine.environment else ""
    if machine.host.container and machine.host.rdma_devices is False:
        return f"{first}pass the devices into the container: --device=/dev/infiniband --ulimit memlock=-1"
    look = f"ibv_devinfo -d {idle[0]}" if idle else "ls /sys/class/infiniband; ibstat"
    return f"{first}{look}; then measure all_reduce_perf between two hosts before tuning anything else"

"""NCCL's traffic goes over TCP with one thread and one socket.

## What it finds
TCP between hosts whose adapters have 100 Gb/s and more, or between GPUs of one host (NET/Socket in NCCL's log), with
NCCL_SOCKET_NTHREADS and NCCL_NSOCKS_PERTHREAD unset.

## Why it matters
One thread moves about 3.2 GB/s. Measured between two H200 over TCP: with 4 threads of 4 sockets a DDP step of a 1.4B
GPT took 718 instead of 2024 ms, 2.8 times as fast.

## What to do
The plan sets both to 4 where NCCL's log or the list of adapters shows TCP and each GPU has 5 processor cores and more:
one for the rank, four to spare. On AWS and Google's clouds NCCL has its own defaults; there nothing is set. RDMA is
better than any number of threads: see NET112.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-nthreads; docs/models.md
"""

from collections.abc import Iterator

from advisor.rules.format import bandwidth
from advisor.rules.machine import Machine
from advisor.rules.network import only_ethernet, said_sockets, unset
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.transport import tcp_speed

SETTINGS = {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}
LEAST_RATE = 12.5e9  # bytes per second of an adapter
CORES = 5  # of each GPU: one for the rank, four for the threads
CLOUDS = ("aws", "amazon", "google", "gcp")  # with defaults of their own


@rule("NET120", "one-socket-thread")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    plan = case.plan
    if any(name in machine.environment for name in SETTINGS) or not machine.gpus or _has_defaults(machine):
        return
    where = _where(machine)
    if where is None or (plan is not None and plan.ranks == 1) or (plan is not None and plan.launcher.device == "cpu"):
        return
    cores = machine.host.cores
    each = None if cores is None else cores // len(machine.gpus)
    enough = each is not None and each >= CORES
    one, four = tcp_speed({}), tcp_speed(SETTINGS)
    yield Finding(
        code="NET120",
        name="one-socket-thread",
        severity="info",
        message=(
            f"{where} over TCP: one thread moves about {bandwidth(one)}, four about {bandwidth(four)} (a DDP step "
            f"2.8 times as fast, measured); each GPU has {'an unknown number of' if each is None else each} cores"
            f"{', so that the plan sets 4 threads of 4 sockets' if enough else ''}"
        ),
        facts={"one_thread": one, "four_threads": four, "cores_per_gpu": each}
        | ({"env": unset(machine, SETTINGS)} if enough else {}),
        remedy="none needed; export NCCL_SOCKET_NTHREADS yourself to choose another number"
        if enough
        else f"with {CORES} cores and more for each GPU: export NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4",
    )


def _where(machine: Machine) -> str | None:
    """Say between what TCP carries the traffic; None where it does not, or an adapter is too slow to gain."""
    rates = [nic.bandwidth for nic in machine.nics if nic.kind == "ethernet" and nic.bandwidth is not None]
    rates += [i.bandwidth for i in machine.interfaces if i.kind in (None, "ethernet") and i.bandwidth is not None]
    fast = max(rates, default=0.0) >= LEAST_RATE
    if machine.nodes > 1:
        return f"{machine.nodes} hosts" if fast and (said_sockets(machine) or only_ethernet(machine)) else None
    ways = machine.nccl_log.transports if machine.nccl_log is not None else {}
    return "the GPUs of one host" if len(machine.gpus) > 1 and any(w.startswith("NET/Socket") for w in ways) else None


def _has_defaults(machine: Machine) -> bool:
    price = machine.price.source.lower() if machine.price else ""
    efa = any(nic.kind == "efa" for nic in machine.nics)
    return efa or any(cloud in price for cloud in CLOUDS)

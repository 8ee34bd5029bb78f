"""Let CPU processes stand in for GPUs, so that a machine without any takes the same path with gloo."""

from itertools import combinations

from msgspec import structs

from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Gpu, Link, Machine

# gloo over loopback TCP: 0.9 GB/s of all-reduce bus bandwidth at 64 MiB, two ranks on a 2-core cloud VM, torch 2.13.
GLOO_BANDWIDTH = 1e9  # bytes per second, one direction


def cpu_stand_ins(machine: Machine, ranks: int) -> Machine:
    """Return the machine with `ranks` CPU processes in place of its GPUs, each with its share of the free memory."""
    if ranks < 1:
        raise AdvisorError(f"{ranks} CPU processes can't train anything", "give --gpus 1 or more")
    host = machine.host
    share = None if host.memory_available is None else host.memory_available // ranks
    processes = tuple(Gpu(id=f"CPU{i}", index=i, name=host.cpu, memory=share) for i in range(ranks))
    links = tuple(
        Link(a=a.id, b=b.id, code="HOST", kind="host-memory", bandwidth=GLOO_BANDWIDTH, bandwidth_source="assumed")
        for a, b in combinations(processes, 2)
    )
    return structs.replace(machine, gpus=processes, links=links)


def is_cpu(gpu: Gpu) -> bool:
    """Say whether this is a CPU process that stands in for a GPU."""
    return gpu.id.startswith("CPU")

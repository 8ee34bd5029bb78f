"""A virtual machine hides how its GPUs are wired.

## What it finds
A virtual machine in which every two GPUs look alike, joined by host bridges or the link between sockets, without NVLink
and without NCCL_TOPO_FILE; and whether a topology file of the vendor is there. A warning where the GPUs are modules,
which have NVLink on their board, and no such file is known.

## Why it matters
The hypervisor shows a flat tree: NUMA node -1, link width 0, PHB or SYS everywhere. NCCL then avoids peer-to-peer and
GPUDirect although the hardware can do both; between two H200 that is 27 instead of 326 GB/s. Labels and widths in such
a machine prove nothing.

## What to do
The plan sets NCCL_TOPO_FILE to the vendor's file where one is there (images of Azure and others bring one that lists
the machine's own PCI addresses); NCCL reads /var/run/nvidia-topologyd/virtualTopology.xml by itself. Else ask the
provider for one; a dump of the bare host does not fit, since addresses differ. Measure: an all-reduce shows what the
links are.

## Source
https://github.com/NVIDIA/nccl/issues/1329, https://github.com/NVIDIA/nccl/issues/1674;
https://github.com/Azure/azhpc-images/tree/master/topology; docs/models.md
"""

from collections.abc import Iterator

from advisor.rules.format import ids
from advisor.rules.network import TOPOLOGY_FILE
from advisor.rules.nvlinks import is_module
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.topology import gpu_links

FLAT = ("host-bridge", "numa-node", "inter-socket")


@rule("NET125", "virtual-machine-hides-links")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    links = list(gpu_links(machine).values())
    if not machine.host.virtual or len(machine.gpus) < 2 or "NCCL_TOPO_FILE" in machine.environment:
        return
    codes = {link.code for link in links}
    flat = len(codes) == 1 and all(link.kind in FLAT for link in links)
    without = not links and any(gpu.pcie is not None and gpu.pcie.width == 0 for gpu in machine.gpus)
    up = any(link.active for gpu in machine.gpus for link in gpu.nvlinks or ())
    if up or not (flat or without):
        return
    modules = [gpu for gpu in machine.gpus if is_module(gpu) and not gpu.mig]
    shown = f"every pair is {codes.pop()}" if codes else "no link is shown"
    hidden = f"; {ids([gpu.id for gpu in modules])} ({modules[0].name}) have NVLink on their board" if modules else ""
    file = machine.host.topology_file
    env = {"NCCL_TOPO_FILE": file} if file and file != TOPOLOGY_FILE else {}
    how = f"the plan sets NCCL_TOPO_FILE={file}" if env else f"NCCL reads {file} by itself"
    yield Finding(
        code="NET125",
        name="virtual-machine-hides-links",
        severity="warning" if modules and not file else "info",
        message=(
            f"this virtual machine shows {len(machine.gpus)} GPUs in a flat tree, {shown}{hidden}: the true links are "
            f"not visible{f'; {how}' if file else ''}"
        ),
        facts={"gpus": len(machine.gpus), "modules": len(modules), "file": file} | ({"env": env} if env else {}),
        remedy="measure with all_reduce_perf"
        + ("" if file else "; if the provider has a topology file, export NCCL_TOPO_FILE=FILE"),
    )

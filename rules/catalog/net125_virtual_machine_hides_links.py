"""A virtual machine hides how its GPUs are wired.

## What it finds
A virtual machine in which every two GPUs look alike, joined by host bridges or the link between sockets, without NVLink
and without NCCL_TOPO_FILE. A warning where the GPUs are modules, which have NVLink on their board.

## Why it matters
The hypervisor shows a flat tree: NUMA node -1, link width 0, PHB or SYS everywhere. NCCL then avoids peer-to-peer and
GPUDirect although the hardware can do both; between two H200 that is 27 instead of 326 GB/s. Labels and widths in such
a machine prove nothing.

## What to do
Ask the provider for its topology file and set NCCL_TOPO_FILE to it (images of AWS and Azure bring one); a dump of the
bare host does not fit, since addresses differ. Measure: an all-reduce shows what the links are.

## Source
https://github.com/NVIDIA/nccl/issues/1329, https://github.com/NVIDIA/nccl/issues/1674; docs/models.md
"""

from collections.abc import Iterator

from advisor.rules.format import ids
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
    yield Finding(
        code="NET125",
        name="virtual-machine-hides-links",
        severity="warning" if modules else "info",
        message=(
            f"this virtual machine shows {len(machine.gpus)} GPUs in a flat tree, {shown}{hidden}: the true links are "
            "not visible"
        ),
        facts={"gpus": len(machine.gpus), "modules": len(modules)},
        remedy="measure with all_reduce_perf; if the provider has a topology file, export NCCL_TOPO_FILE=FILE",
    )

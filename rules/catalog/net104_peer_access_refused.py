"""The driver refuses peer access between GPUs that could have it.

## What it finds
Pairs for which `nvidia-smi topo -p2p r` or `-p2p w` prints something else than OK (CNS chipset, TNS topology, GNS GPU,
DR registry key, NS), although they share NVLink or the stock driver supports PCIe peer-to-peer for their model.
GeForce cards without peer-to-peer are not meant: theirs is normal.

## Why it matters
Without peer access the data crosses host memory: written and read once more over PCIe, at about 0.57 instead of 0.88
of the link. Between NVLinked GPUs NCCL does not start at all.

## What to do
CNS, TNS: look at the IOMMU, ACS and the slots; in a virtual machine ask the provider, since the hypervisor decides.
DR: remove the driver's registry key. NVLinked pairs: check `nvidia-smi nvlink -s` and restart the driver.

## Source
https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/graph/paths.cc#L355; case of two L4 that print CNS
"""

from collections.abc import Iterator

from msgspec.structs import replace

from advisor.rules.format import bandwidth, ids
from advisor.rules.machine import Link, Machine
from advisor.rules.network import DIRECT_PCIE
from advisor.rules.nvlinks import model_of
from advisor.rules.plan import Finding, Severity
from advisor.rules.rule import Case, rule
from advisor.rules.topology import gpu_links
from advisor.rules.transport import hop_speed, peer_to_peer

WORDS = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it",
    "DR": "a registry key switches it off",
    "NS": "not supported",
    "U": "unknown",
}
REMEDIES = {
    "CNS": "boot with iommu=pt and switch ACS off in the BIOS; in a virtual machine ask its provider",
    "TNS": "put the cards below one root port or switch; in a virtual machine ask its provider",
    "DR": "remove the driver's registry key (modprobe options of nvidia), then reload the driver",
}


@rule("NET104", "peer-access-refused")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    if not peer_to_peer(machine):
        return
    links = gpu_links(machine)
    for (status, severity), pairs in _refused(machine, links).items():
        gpus = [gpu.id for gpu in machine.gpus if any(gpu.id in pair for pair in pairs)]
        yield Finding(
            code="NET104",
            name="peer-access-refused",
            severity=severity,
            message=(
                f"the driver refuses peer access between {len(pairs)} pairs of {ids(gpus)}: {status}, "
                f"{WORDS.get(status, status)}; {_cost(machine, links.get(pairs[0]), severity)}"
            ),
            facts={"status": status, "pairs": len(pairs)},
            remedy=f"nvidia-smi topo -p2p r; {REMEDIES.get(status, 'check nvidia-smi nvlink -s, restart the driver')}",
        )


def _refused(machine: Machine, links: dict[frozenset[str], Link]) -> dict[tuple[str, Severity], list[frozenset[str]]]:
    """Group the pairs that are refused what they could have by the driver's word and what that costs."""
    able = {gpu.id for gpu in machine.gpus if (model := model_of(gpu)) is not None and model.pcie_p2p}
    found: dict[frozenset[str], str] = {}
    for access in machine.peer_access:
        pair = frozenset((access.a, access.b))
        nvlink = pair in links and links[pair].kind == "nvlink"
        if access.capability not in ("read", "write") or access.status in ("OK", "U") or not (nvlink or pair <= able):
            continue
        if access.status == "NS" and _severity(machine, links.get(pair)) == "info":
            continue  # NCCL takes host memory there in any case, and the driver names no cause
        found.setdefault(pair, access.status)
    groups: dict[tuple[str, Severity], list[frozenset[str]]] = {}
    for pair, status in found.items():
        groups.setdefault((status, _severity(machine, links.get(pair))), []).append(pair)
    return groups


def _severity(machine: Machine, link: Link | None) -> Severity:
    if link is None:
        return "info"
    if link.kind == "nvlink":
        return "error"
    pair_on_amd = len(machine.gpus) == 2 and machine.host.cpu_vendor == "AuthenticAMD"
    return "warning" if link.kind in DIRECT_PCIE or pair_on_amd else "info"


def _cost(machine: Machine, link: Link | None, severity: Severity) -> str:
    if severity == "error":
        return "NCCL does not start between NVLinked GPUs without it"
    if severity == "info" or link is None:
        return "their traffic crosses host memory"
    gpus = [gpu.id for gpu in machine.gpus]
    now = hop_speed(machine, link, gpus=gpus, concurrent=1)
    able = hop_speed(replace(machine, peer_access=()), link, gpus=gpus, concurrent=1)
    if now is None or able is None:
        return "their traffic crosses host memory"
    return f"through host memory a hop moves about {bandwidth(now)}, directly {bandwidth(able)}"

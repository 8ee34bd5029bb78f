"""NCCL's settings keep GPUs from copying to each other although they could.

## What it finds
NCCL_P2P_DISABLE=1, or NCCL_P2P_LEVEL set nearer than the links, on GPUs of one PCIe switch that the driver lets copy
to each other; and NCCL_P2P_LEVEL that shuts NVLink out. (NCCL_P2P_DISABLE on NVLink is NET102.) Also NCCL_P2P_LEVEL
set farther than NCCL's own choice where the PCIe switches have access control (ACS) on.

## Why it matters
All traffic then goes through host memory: each byte is written and read once more, at about two thirds of the speed
of a direct copy over PCIe, and shares the way with everything else. On GeForce cards without peer-to-peer the setting
changes nothing, since NCCL asks the driver for each pair. With ACS on, copies forced beyond a switch are known to
hang.

## What to do
Unset it. If training then hangs or is wrong, peer-to-peer is broken on this host: ACS or the IOMMU are the usual
cause.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-p2p-disable; src/graph/paths.cc,
ncclTopoCheckP2p; https://github.com/NVIDIA/nccl/issues/2079; shares of the bandwidth: rules/transport.py
"""

from collections.abc import Iterator

from advisor.rules.format import plural
from advisor.rules.hardware import gpu_model
from advisor.rules.machine import Link, LinkKind, Machine
from advisor.rules.nccl_choice import LEVELS, level_of
from advisor.rules.nccl_variables import number_of, setting
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

# By itself NCCL lets GPUs copy up to PXB.
DISTANCE: dict[LinkKind, str] = {"nvlink": "NVL", "pcie-switch": "PIX", "pcie-switches": "PXB"}


@rule("ENV110", "pcie-peers-switched-off")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    off = number_of(machine, "NCCL_P2P_DISABLE") == 1
    found = setting(machine, "NCCL_P2P_DISABLE" if off else "NCCL_P2P_LEVEL")
    level = "LOC" if off else level_of(found.value) if found else None
    if found is None or level is None:
        return
    lost = [link for link in machine.links if _lost(machine, link, level) and not (off and link.kind == "nvlink")]
    far = LEVELS.index(level) > LEVELS.index("PXB") and machine.host.acs is True
    if not lost and not far:
        return
    why = "copies beyond one PCIe switch are forced, which is known to hang where ACS is on, as here"
    if lost:
        first = f"{lost[0].a}-{lost[0].b}, {lost[0].code}"
        why = f"{plural(len(lost), 'pair')} of GPUs that can copy to each other ({first}) through host memory instead"
    yield Finding(
        code="ENV110",
        name="pcie-peers-switched-off",
        severity="warning",
        message=f"{found.words}: {why}",
        facts=found.facts | {"pairs": len(lost)},
        remedy=f"{found.undo}; if training then hangs, look for ACS and the IOMMU",
    )


def _lost(machine: Machine, link: Link, level: str) -> bool:
    """Say whether the pair would copy directly without the setting, as far as is known, and healthily."""
    distance = DISTANCE.get(link.kind)
    if distance is None or LEVELS.index(level) >= LEVELS.index(distance):
        return False
    if link.kind == "nvlink":
        return True
    broken = machine.host.acs is True or machine.host.iommu == "translating"
    return not broken and _able(machine, link)


def _able(machine: Machine, link: Link) -> bool:
    """Say whether the driver lets the pair copy, or where nobody asked it, whether such GPUs can."""
    gpus = {gpu.id: gpu for gpu in machine.gpus}
    pair = {link.a, link.b}
    if not pair <= set(gpus):
        return False  # a network adapter
    told = {p.status for p in machine.peer_access if {p.a, p.b} == pair and p.capability in ("read", "write")}
    models = [gpu_model(gpus[name].name or "") for name in pair]
    return told == {"OK"} if told else all(model is not None and model.pcie_p2p for model in models)

"""Some cards have an NVLink bridge and others of the same model have none, or fewer.

## What it finds
Hosts of cards that take bridges (RTX 3090, A6000, A100 and H100 PCIe), where some pairs are bridged and at least two
more cards are not, or where pairs have fewer bridges than fit. One card left over of an odd number is normal.

## Why it matters
A bridged pair of A100 has 300 GB/s, the same cards over PCIe 4 have 31.5. The ring over all cards runs at the speed of
those without.

## What to do
Look whether a bridge came loose. If there never was one, use a bridged pair for the heavy traffic: `advisor recommend`
prices it beside all cards.

## Source
NVIDIA NVLink bridge installation guides; data sheets in rules/hardware.toml
"""

from collections.abc import Iterator

from advisor.rules.format import ids
from advisor.rules.machine import Gpu
from advisor.rules.nvlinks import LINKS_OF_A_BRIDGE, active_nvlinks, model_of, takes_bridges
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("NET107", "nvlink-bridge-missing")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    cards = [gpu for gpu in machine.gpus if takes_bridges(gpu)]
    counts = {gpu.id: active_nvlinks(machine, gpu) for gpu in cards}
    bridged = [gpu for gpu in cards if counts[gpu.id]]
    bare = [gpu for gpu in cards if counts[gpu.id] == 0]
    fewer = [gpu for gpu in bridged if _has_room(gpu, counts[gpu.id] or 0)]
    if bridged and len(bare) >= 2:
        most = len(bridged) > len(bare)
        lacking, message = bare, f"{ids(_names(bridged))} are bridged, {ids(_names(bare))} have no NVLink bridge"
    elif fewer:
        most, lacking = False, fewer
        message = (
            f"{ids(_names(fewer))} have {counts[fewer[0].id]} of {_most(fewer[0])} NVLinks: more bridges would fit"
        )
    else:
        return
    yield Finding(
        code="NET107",
        name="nvlink-bridge-missing",
        severity="warning" if most else "info",
        message=f"{message} ({lacking[0].name})",
        facts={"bridged": len(bridged), "without": len(bare), "gpus": _names(lacking)},
        remedy=f"nvidia-smi nvlink -s; look whether a bridge between {ids(_names(lacking))} came loose, or add one",
    )


def _has_room(gpu: Gpu, active: int) -> bool:
    return _most(gpu) > active and active % LINKS_OF_A_BRIDGE == 0 and _most(gpu) % LINKS_OF_A_BRIDGE == 0


def _most(gpu: Gpu) -> int:
    model = model_of(gpu)
    return model.nvlink_links if model else 0


def _names(gpus: list[Gpu]) -> list[str]:
    return [gpu.id for gpu in gpus]

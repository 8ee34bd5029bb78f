"""A GPU has fewer PCIe lanes than it could use.

## What it finds
GPUs whose link is narrower than the card allows: an x8 or x4 slot, a riser, lanes shared with other slots. The width
never drops at idle, so one reading is enough. A width of 0, as virtual machines print it, means unknown.

## Why it matters
Without NVLink all gradients cross the slot. An x4 link of generation 2 moves 2 GB/s; the pair that has one such card
reduces gradients at no more than that, and FSDP becomes hopeless.

## What to do
Move the card to a slot with all lanes, or take a board with more of them. Until then prefer DDP with accumulation, and
compare with the other cards alone.

## Source
Case of a second card in an x4 slot of an old board; PCI Express base specification
"""

from collections.abc import Iterator

from advisor.rules.format import bandwidth, folded, ids
from advisor.rules.links import attachment
from advisor.rules.machine import Gpu, Pcie
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("NET109", "pcie-lanes-below-maximum")
def check(case: Case) -> Iterator[Finding]:
    narrow = [gpu for gpu in case.machine.gpus if 0 < _width(gpu) < (_pcie(gpu).width_max or 0)]
    widest = max((_width(gpu) for gpu in case.machine.gpus), default=0)
    for first, same in folded(narrow, lambda gpu: (_width(gpu), _pcie(gpu).width_max, attachment(gpu))):
        width, most = _width(first), _pcie(first).width_max or 0
        severe = width <= most / 4 or width < widest
        names = ids([gpu.id for gpu in same])
        yield Finding(
            code="NET109",
            name="pcie-lanes-below-maximum",
            severity="warning" if severe else "info",
            message=(
                f"{names} {'has' if len(same) == 1 else 'have'} {width} of {most} PCIe lanes, "
                f"{bandwidth(attachment(first))} each way" + (f"; others have {widest}" if width < widest else "")
            ),
            facts={"width": width, "width_max": most, "gpus": [gpu.id for gpu in same]},
            remedy=f"move {names} to a slot with {most} lanes (lspci -vv, LnkSta, shows the width), or leave it out",
        )


def _pcie(gpu: Gpu) -> Pcie:
    return gpu.pcie or Pcie()


def _width(gpu: Gpu) -> int:
    return _pcie(gpu).width or 0

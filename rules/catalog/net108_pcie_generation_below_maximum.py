"""A busy GPU's PCIe link runs below its generation.

## What it finds
GPUs that were at work while probed (utilization of 10 % and more) and whose link ran at a lower PCIe generation than
it can. An idle GPU at generation 1 is no fault: it saves power and comes back at once.

## Why it matters
Each generation halves what crosses the slot, and all ranks wait for the slowest. One of 16 cards once trained for
hours at generation 2, 8 instead of 64 GB/s, with no error and 100 % utilization.

## What to do
Where its siblings are faster, reseat the card or its riser, reset the GPU, look for PCIe errors in `dmesg`. Where all
are alike, the board or the BIOS (a fixed link speed) is the limit.

## Source
https://github.com/Syllo/nvtop/issues/6; a fleet report of a card stuck at generation 2
"""

from collections.abc import Iterator

from advisor.rules.format import bandwidth, folded, ids
from advisor.rules.hardware import pcie_bandwidth
from advisor.rules.links import BUSY
from advisor.rules.machine import Gpu, Pcie
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("NET108", "pcie-generation-below-maximum")
def check(case: Case) -> Iterator[Finding]:
    busy = [gpu for gpu in case.machine.gpus if (gpu.utilization or 0) >= BUSY and _pcie(gpu).generation]
    slow = [gpu for gpu in busy if _now(gpu) < (_pcie(gpu).generation_max or 0)]
    fastest = max((_now(gpu) for gpu in busy), default=0)
    for first, same in folded(slow, lambda gpu: (_now(gpu), _pcie(gpu).generation_max)):
        now, most = _now(first), _pcie(first).generation_max or 0
        behind = now < fastest
        has = f"{bandwidth(_speed(first, now))} instead of {bandwidth(_speed(first, most))}"
        yield Finding(
            code="NET108",
            name="pcie-generation-below-maximum",
            severity="warning" if behind else "info",
            message=(
                f"{ids([gpu.id for gpu in same])} {'runs' if len(same) == 1 else 'run'} at PCIe generation {now} of "
                f"{most} under load: {has}"
                + (f"; others run at generation {fastest}, and all ranks wait for the slowest" if behind else "")
            ),
            facts={"generation": now, "generation_max": most, "gpus": [gpu.id for gpu in same]},
            remedy=(
                "reseat the card and its riser, reset it (nvidia-smi --gpu-reset -i N), look for PCIe errors in dmesg"
                if behind
                else "nvidia-smi -q -d PCIE shows what the host allows; look for a fixed link speed in the BIOS"
            ),
        )


def _pcie(gpu: Gpu) -> Pcie:
    return gpu.pcie or Pcie()


def _now(gpu: Gpu) -> int:
    return _pcie(gpu).generation or 0


def _speed(gpu: Gpu, generation: int) -> float | None:
    return pcie_bandwidth(generation, _pcie(gpu).width or _pcie(gpu).width_max or 16)

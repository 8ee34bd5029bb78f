"""Some NVLinks of a GPU are down.

## What it finds
GPUs with fewer active NVLinks than their data sheet has: modules with dead links (`nvidia-smi nvlink -s` prints
<inactive>), and cards whose bridge makes partial contact (NV3 instead of NV4). Cards without a bridge are not meant.

## Why it matters
NCCL lays fewer channels or takes other paths, and all GPUs move at the speed of the one with the fewest links. A
bridge with partial contact has also been seen to hang the first all-reduce.

## What to do
A card: power off, reseat the bridge; run without it meanwhile. A module: a fault of hardware or driver. Take the node
out of service and have it checked.

## Source
https://github.com/Azure/azhpc-diagnostics/issues/73, https://github.com/NVIDIA/nccl/issues/557
"""

from collections.abc import Iterator

from advisor.rules.format import folded, ids, percent
from advisor.rules.machine import Gpu
from advisor.rules.nvlinks import LINKS_OF_A_BRIDGE, active_nvlinks, is_module, model_of
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("NET106", "nvlinks-inactive")
def check(case: Case) -> Iterator[Finding]:
    counts = {gpu.id: active_nvlinks(case.machine, gpu) for gpu in case.machine.gpus}
    virtual = case.machine.host.virtual is True  # which may hide all of them: NET125
    faulty = [gpu for gpu in case.machine.gpus if _lacks(gpu, counts[gpu.id]) and not (virtual and not counts[gpu.id])]
    for first, same in folded(faulty, lambda gpu: (counts[gpu.id], gpu.name, _down(gpu))):
        active, model = counts[first.id] or 0, model_of(first)
        expected = model.nvlink_links if model else 0
        names, down = ids([gpu.id for gpu in same]), _down(first)
        yield Finding(
            code="NET106",
            name="nvlinks-inactive",
            severity="warning",
            message=(
                f"{names} ({first.name}) {'has' if len(same) == 1 else 'have'} {active} of {expected} NVLinks active"
                f"{f', links {down} are down' if down else ''}: expect {percent(active / expected)} of the bandwidth"
            ),
            facts={"active": active, "expected": expected, "gpus": [gpu.id for gpu in same]},
            remedy=(
                "nvidia-smi nvlink -s; a fault of hardware or driver: take the node out of service and have it checked"
                if is_module(first)
                else "power off and reseat the NVLink bridge; meanwhile run without it: export NCCL_P2P_DISABLE=1"
            ),
        )


def _lacks(gpu: Gpu, active: int | None) -> bool:
    """Say whether links that must be up are down: any of a module, of a card those of a bridge that is there."""
    model = model_of(gpu)
    if model is None or active is None or active >= model.nvlink_links or gpu.mig:
        return False
    if is_module(gpu):
        return True
    return active > 0 and (model.nvlink_links <= LINKS_OF_A_BRIDGE or active % LINKS_OF_A_BRIDGE != 0)


def _down(gpu: Gpu) -> str:
    return ", ".join(str(link.number) for link in gpu.nvlinks or () if link.active is False)

"""GPUs and NICs as boxes: what stands in them, and which NICs share one."""

import re
from typing import Literal

from advisor.picture.blocks import PAD, Block, single, text_height
from advisor.picture.shapes import Box
from advisor.picture.words import LARGE, SMALL, short_gpu_name, shortened, wrapped
from advisor.rules.format import bandwidth, folded, ids, memory
from advisor.rules.machine import Gpu, Machine, Nic, Pcie

WIDTH = 108.0  # of a device's box
NICS_SHOWN = 4  # equal ones in a frame, or one for each GPU there; the others share a box
NETWORKS = {"infiniband": "InfiniBand", "roce": "RoCE", "ethernet": "Ethernet", "efa": "EFA"}


def gpu_block(gpu: Gpu) -> Block:
    """Draw a GPU: id, short name, memory, PCIe slot."""
    room = WIDTH - PAD
    name = wrapped(short_gpu_name(gpu.name), SMALL, room)[:2] if gpu.name else ()
    facts = [memory(gpu.memory) if gpu.memory else "", slot_in_words(gpu.pcie)]
    lines = (
        shortened(gpu.id, LARGE, room, bold=True),
        *name,
        *(shortened(fact, SMALL, room) for fact in facts if fact),
    )
    tooltip = ", ".join(part for part in (gpu.id, gpu.name, *facts, gpu.bus_id, gpu.uuid) if part)
    return _device("gpu", lines, tooltip, (gpu.id,))


def nic_blocks(nics: list[Nic], gpus: int) -> list[Block]:
    """Draw the NICs of a frame with that many GPUs; of equal ones beyond what is shown, one box says how many."""
    blocks: list[Block] = []
    limit = max(NICS_SHOWN, gpus)
    for _, same in folded(nics, lambda nic: (_family(nic), nic.kind, nic.bandwidth)):
        shown = same if len(same) <= limit else same[: limit - 1]
        blocks += [_nic(nic) for nic in shown]
        if len(shown) < len(same):
            blocks.append(_more(same[len(shown) :]))
    return blocks


def devices_of(machine: Machine) -> dict[str, Gpu | Nic]:
    """Find devices by id."""
    devices: tuple[Gpu | Nic, ...] = (*machine.gpus, *machine.nics)
    return {device.id: device for device in devices}


def _nic(nic: Nic) -> Block:
    facts = _facts(nic)
    name = nic.name or nic.id
    lines = (shortened(name, LARGE, WIDTH - PAD, bold=True), *facts)
    called = name if name == nic.id else f"{nic.id}, {name}"
    return _device("nic", lines, ", ".join((called, *facts)), (nic.id,))


def _more(nics: list[Nic]) -> Block:
    """Draw one box for several equal NICs: `32 more`, `mlx5`."""
    family, facts = _family(nics[0]), _facts(nics[0])
    each = f" (each {', '.join(facts)})" if facts else ""
    names = ids([nic.name or nic.id for nic in nics])
    named = [] if family in ("", "NIC") else [shortened(family, SMALL, WIDTH - PAD)]
    lines = (f"{len(nics)} more", *named, *facts)
    return _device("nic", lines, f"{names}{each}", tuple(nic.id for nic in nics))


def _device(kind: Literal["gpu", "nic"], lines: tuple[str, ...], tooltip: str, devices: tuple[str, ...]) -> Block:
    height = text_height(kind, len(lines)) + PAD
    return single(Box(kind=kind, width=WIDTH, height=height, lines=lines, tooltip=tooltip, devices=devices))


def _facts(nic: Nic) -> tuple[str, ...]:
    facts = (NETWORKS[nic.kind] if nic.kind else "", bandwidth(nic.bandwidth) if nic.bandwidth else "")
    return tuple(fact for fact in facts if fact)


def _family(nic: Nic) -> str:
    """Name what equal adapters share: mlx5 of mlx5_12, eth of eth0."""
    return re.sub(r"[_\W]*\d+(np\d+|f\d+)*$", "", nic.name or nic.id)


def slot_in_words(pcie: Pcie | None) -> str:
    """Name a GPU's slot: `PCIe 4 x16`; nothing where it is not known."""
    generation = pcie and (pcie.generation_max or pcie.generation)
    width = pcie and (pcie.width or pcie.width_max)
    return f"PCIe {generation} x{width}" if generation and width else ""

"""NVLinks of single GPUs: how many are up, how many the data sheet has, and whether bridges or a board join them."""

from advisor.rules.hardware import GpuModel, gpu_model
from advisor.rules.links import nvlink_count
from advisor.rules.machine import Gpu, Machine
from advisor.rules.topology import gpu_links

# Modules of a board are named sxm in our table, but for these; all others with NVLink are cards that take bridges.
_BOARDS = ("h20", "h20-141gb", "gh200", "gh200-144gb", "b200", "b300", "gb200", "gb300")
LINKS_OF_A_BRIDGE = 4  # of A100, H100 and A30 cards, which take one or three; older cards have one bridge of 2 or 4


def model_of(gpu: Gpu) -> GpuModel | None:
    return gpu_model(gpu.name) if gpu.name else None


def is_module(gpu: Gpu) -> bool:
    """Say whether NVLink runs over the board that carries the GPU, as on HGX, and needs no bridge."""
    model = model_of(gpu)
    return model is not None and model.nvlink_links > 0 and ("-sxm" in model.key or model.key in _BOARDS)


def takes_bridges(gpu: Gpu) -> bool:
    model = model_of(gpu)
    return model is not None and model.nvlink_links > 0 and not is_module(gpu)


def active_nvlinks(machine: Machine, gpu: Gpu) -> int | None:
    """Count a GPU's NVLinks that are up; of a card also by the link matrix, since a bridge is shared with no other."""
    states = [link.active for link in gpu.nvlinks or ()]
    if states and None not in states:
        return states.count(True)
    links = [link for pair, link in gpu_links(machine).items() if gpu.id in pair]
    if not takes_bridges(gpu) or len(links) < len(machine.gpus) - 1 or not links:
        return None
    return sum(nvlink_count(link.code) for link in links)

"""Find the parts of a model by its structure: the repeated blocks, which FSDP wraps."""

from collections import Counter

from torch import nn

CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


def blocks(module: nn.Module, prefix: str = "") -> dict[str, nn.Module]:
    """Return by name the modules of one class, with parts and parameters, that repeat inside a container."""
    found: dict[str, nn.Module] = {}
    inside = Counter(type(child) for child in module.children()) if isinstance(module, CONTAINERS) else Counter()
    for name, child in module.named_children():
        if inside[type(child)] > 1 and _is_block(child):
            found[prefix + name] = child
        else:
            found |= blocks(child, f"{prefix}{name}.")
    return found


def _is_block(module: nn.Module) -> bool:
    parts = next(module.children(), None) is not None
    return parts and not isinstance(module, CONTAINERS) and next(module.parameters(), None) is not None

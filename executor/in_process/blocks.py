"""The repeated blocks of a model, found by structure: what is sharded and recomputed one by one."""

from collections import Counter
from typing import Any

from advisor.executor.in_process.meet import say


def blocks(model: Any) -> dict[str, Any]:
    """Return by name the modules of one class, with parts and parameters, that repeat inside a container.

    A block that shares a parameter with the rest of the model is none: it can't be gathered and freed alone.
    """
    owners = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())

    def alone(block: Any) -> bool:
        inside = Counter(id(parameter) for module in block.modules() for parameter in module._parameters.values())
        return all(owners[parameter] == count for parameter, count in inside.items() if parameter != id(None))

    return {name: block for name, block in _repeated(model, "").items() if alone(block)}


def _repeated(module: Any, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    inside = Counter(type(child) for child in module.children()) if _is_container(module) else Counter()
    for name, child in module.named_children():
        if inside[type(child)] > 1 and _is_block(child):
            found[prefix + name] = child
        else:
            found |= _repeated(child, f"{prefix}{name}.")
    return found


def _is_container(module: Any) -> bool:
    from torch import nn

    return isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict)


def _is_block(module: Any) -> bool:
    parts = next(module.children(), None) is not None
    return parts and not _is_container(module) and next(module.parameters(), None) is not None


def recompute(model: Any, which: str) -> int:
    """Have the activations inside blocks recomputed in the backward pass; return how many blocks that are.

    `which` is the plan's word: "full" takes each block, "selective" the first, third, fifth, ... of each container.
    """
    from torch.distributed._composable.checkpoint_activation import checkpoint

    if any(getattr(module, "gradient_checkpointing", False) is True for module in model.modules()):
        say("the model recomputes activations by itself: left as it is")
        return 0
    found = blocks(model)
    chosen = [block for inside in _by_container(found) for block in inside[:: 2 if which == "selective" else 1]]
    for block in chosen:
        if checkpoint.state(block) is None:  # else a model that is wrapped again
            checkpoint(block)
    if not found:
        say("the model has no repeated blocks: no activation is recomputed")
    return len(chosen)


def _by_container(found: dict[str, Any]) -> list[list[Any]]:
    containers: dict[str, list[Any]] = {}
    for name, block in found.items():
        containers.setdefault(name.rpartition(".")[0], []).append(block)
    return list(containers.values())

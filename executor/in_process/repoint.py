"""What the script holds of a model's parameters, replaced by the sharded ones: optimizers' groups, lists, dictionaries.

Sharding gives a model new parameters. An optimizer or a list for gradient clipping that was made before would silently
go on with the old ones.
"""

import gc
from collections.abc import Callable
from types import CellType, FrameType, ModuleType
from typing import Any

WRAP = "DistributedDataParallel(...)"
Replace = dict[int, tuple[Any, Any]]  # old and new parameter, by the id of the old one


def repoint(
    pairs: list[tuple[Any, Any]], shard_state: Callable[[dict[str, Any], Any], dict[str, Any]], at: str = WRAP
) -> None:
    """Replace each old parameter by its new one wherever it is held; raise RuntimeError where that can't be done.

    `shard_state` brings what an optimizer already knows of a parameter into the new one's shape; `at` is what the
    script did to have it sharded.
    """
    replace: Replace = {id(old): (old, new) for old, new in pairs if old is not new}
    ours = {id(pairs), id(replace), *map(id, pairs), *map(id, replace.values())}
    stuck = 0
    for holder in gc.get_referrers(*(old for old, _ in replace.values())):
        if id(holder) in ours or isinstance(holder, FrameType | ModuleType):
            continue
        if isinstance(holder, list):
            holder[:] = [new_for(item, replace) for item in holder]
        elif isinstance(holder, dict):
            _replace_in_dict(holder, replace, shard_state)
        elif isinstance(holder, set):
            items = [new_for(item, replace) for item in holder]
            holder.clear()
            holder.update(items)
        elif isinstance(holder, CellType):
            holder.cell_contents = new_for(holder.cell_contents, replace)
        elif isinstance(holder, tuple):
            stuck += sum(id(item) in replace for item in holder)
        elif hasattr(holder, "__dict__"):
            _replace_in_dict(vars(holder), replace, shard_state)
    if stuck > 1:
        raise RuntimeError(
            f"a tuple made before {at} holds parameters, which sharding replaces: make it a list, or make it after that"
        )


def new_for(item: Any, replace: Replace) -> Any:
    return replace[id(item)][1] if id(item) in replace else item


def _replace_in_dict(
    holder: dict[Any, Any], replace: Replace, shard_state: Callable[[dict[str, Any], Any], dict[str, Any]]
) -> None:
    for key, value in list(holder.items()):
        if id(value) in replace:
            holder[key] = new_for(value, replace)
    if any(id(key) in replace for key in holder):  # an optimizer's state, or names by parameter
        items = list(holder.items())
        holder.clear()
        for key, value in items:
            new = new_for(key, replace)
            holder[new] = shard_state(value, new) if new is not key and isinstance(value, dict) else value

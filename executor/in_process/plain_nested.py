"""Batches and results in tuples, lists and dicts, as plain scripts nest them."""

import copy
from collections.abc import Callable
from typing import Any


def rebuilt(value: Any, act: Callable[[Any], Any]) -> Any:
    """Return a tuple, list or dict with an act done to each of its values, and anything else as it is."""
    if isinstance(value, list | tuple):
        parts = [act(one) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if hasattr(value, "items") and hasattr(value, "__setitem__"):
        same = copy.copy(value)
        for key, one in value.items():
            same[key] = act(one)
        return same
    return value

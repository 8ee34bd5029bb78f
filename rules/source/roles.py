"""Looks names of libraries up in the tables."""

import fnmatch
import functools
import re
from collections.abc import Iterable

from advisor.rules.source.known_names import BASES, ROLES, TOLD_BY_NAME

Table = tuple[tuple[re.Pattern[str], str], ...]
NO_OPTIMIZERS = ("torch.optim.swa_utils.", "torch.optim.Optimizer")


def _compiled(rows: Iterable[tuple[str, str]]) -> Table:
    return tuple((re.compile(fnmatch.translate(pattern)), role) for pattern, role in rows)


_ROLES, _BASES = _compiled(ROLES), _compiled(BASES)


@functools.lru_cache(maxsize=4096)
def role_of_call(name: str) -> str:
    """Return the role of what a call of a library's function or class makes."""
    last = name.rsplit(".", 1)[-1]
    if name.startswith("torch.nn.") and not last[:1].isupper() and not name.startswith("torch.nn.functional."):
        return ""
    if name.startswith("torch.optim.") and (name.startswith(NO_OPTIMIZERS) or not last[:1].isupper()):
        return ""
    return next((role for pattern, role in _ROLES if pattern.match(name)), "")


@functools.lru_cache(maxsize=1024)
def role_of_base(name: str) -> str:
    return next((role for pattern, role in _BASES if pattern.match(name)), "")


@functools.lru_cache(maxsize=4096)
def role_of_name(name: str) -> str:
    """Return the role that a name tells of a value that is not known otherwise."""
    return next((role for pattern, role in TOLD_BY_NAME if pattern.match(name)), "")

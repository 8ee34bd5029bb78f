"""Where the ranks of one save or load come together: through the store of the process group, never in a collective.

A collective that some ranks never reach hangs until its own limit of many minutes, and can't say who is missing.
"""

import json
import os
import time
import warnings
from collections import Counter
from typing import Any

import torch.distributed as dist

from advisor.checkpoint.folder import CheckpointError

_times: Counter[str] = Counter()  # how often this process has begun each act
_last_key: list[str] = []  # what this rank posted last, to be removed once nobody needs it


class Meeting:
    """All ranks, in one act that each of them names the same way."""

    def __init__(self, act: str) -> None:
        distributed = not is_alone()
        self.ranks = dist.get_world_size() if distributed else 1
        self.rank = dist.get_rank() if distributed else 0
        if not distributed and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise CheckpointError(
                f"can't {act}: there are {os.environ['WORLD_SIZE']} processes and no process group: "
                "call torch.distributed.init_process_group before"
            )
        self.act = act
        _times[act] += 1
        self._prefix = f"advisor/checkpoint/{act}/{_times[act]}"
        self._stage = 0
        self._store = dist.distributed_c10d._get_default_store() if distributed else None

    def exchange(self, value: Any, seconds: float) -> list[Any]:
        """Return what each rank brought, by rank. Raises CheckpointError if some have not come within the time."""
        if self._store is None:
            return [value]
        self._stage += 1
        keys = [f"{self._prefix}/{self._stage}/{rank}" for rank in range(self.ranks)]
        self._store.set(keys[self.rank], json.dumps(value))
        end, pause = time.monotonic() + seconds, 0.001
        while not self._store.check(keys):
            if time.monotonic() > end:
                missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
                raise CheckpointError(self._missing(missing, seconds))
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        values = [json.loads(self._store.get(key)) for key in keys]
        # Whoever has come here has read all that was posted before.
        for key in _last_key:
            self._store.delete_key(key)
        _last_key[:] = [keys[self.rank]]
        return values

    def _missing(self, ranks: list[int], seconds: float) -> str:
        return (
            f"can't {self.act}: {of_ranks(ranks)} of {self.ranks} did not come within {seconds:g} s: every rank must "
            "call it, not rank 0 alone; if they are merely late, give it a longer wait="
        )


def is_alone() -> bool:
    """Say whether there is no process group, and keep torch.distributed.checkpoint from warning of that each time."""
    if dist.is_available() and dist.is_initialized():
        return False
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
    return True


def of_ranks(ranks: list[int]) -> str:
    """Name ranks: "rank 3", "ranks 0, 2, 5-7"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    names = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(names)}"

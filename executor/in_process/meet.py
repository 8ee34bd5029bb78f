"""Ranks meeting before a collective, so that one that does not come is named at once instead of waited for."""

import contextlib
import datetime
import sys
from typing import Any

WAIT_SECONDS = 20.0  # between a rank that is there and one that does other work first, such as writing a log
EVALUATION_SECONDS = 60.0  # the first batch may have to start data loaders


class Meetings:
    """The meetings of all ranks, counted by each of them; `what` must be the same on all."""

    def __init__(self) -> None:
        self._held = 0
        self._kept: list[str] = []  # our own keys that others may still look at

    def meet(self, what: str, advice: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait for all ranks, through the store; raise RuntimeError naming those that do not come."""
        import torch.distributed as dist

        if dist.get_world_size() == 1:
            return
        store, me = the_store(), dist.get_rank()
        self._held += 1
        keys = {rank: f"advisor/{self._held}/{what}/{rank}" for rank in range(dist.get_world_size())}
        store.set(keys[me], "")
        self._kept.append(keys[me])
        if len(self._kept) > 2:  # whoever is here has left the last meeting, so all have left the one before
            with contextlib.suppress(RuntimeError):  # not all stores can delete
                store.delete_key(self._kept.pop(0))
        try:
            store.wait(list(keys.values()), datetime.timedelta(seconds=seconds))
        except RuntimeError:  # DistStoreError, at the time limit
            missing = [str(rank) for rank, key in keys.items() if not store.check([key])]
            came = ", ".join(str(rank) for rank in keys if str(rank) not in missing)
            if not missing:
                return
            ranks = "rank" if len(missing) == 1 else "ranks"
            raise RuntimeError(
                f"{what} is a collective when the model is sharded, and {ranks} {', '.join(missing)} did not come "
                f"within {seconds:.0f} s (there: {came}): {advice}"
            ) from None


def the_store() -> Any:
    """Return the store through which the ranks found each other."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def say(line: str) -> None:
    """Say something once, on rank 0's standard error."""
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_rank() == 0:
        sys.stderr.write(f"advisor: {line}\n")

"""The random states of one rank: Python's, NumPy's where it is imported, torch's on the CPU and on this rank's GPU."""

import random
import sys
import zlib
from typing import Any

import torch


def random_states() -> dict[str, Any]:
    """Read the states, as values that a safe torch.load accepts."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        states["numpy"] = (name, keys.tolist(), *rest)
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Set the states that were saved, as far as this process has what they are of."""
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in states:
        numpy.random.set_state(states["numpy"])


def derive_random_states(states: dict[str, Any], rank: int) -> None:
    """Seed a rank that was not there at the save: from the states of rank 0 and its own number, the same every time."""
    seed = zlib.crc32(rank.to_bytes(4, "big"), zlib.crc32(states["torch"].numpy().tobytes()))
    random.seed(seed)
    torch.manual_seed(seed)  # of the GPU as well
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)

"""Checkpoints that survive: for training scripts, with or without `advisor apply`.

    from advisor import checkpoint

    step = checkpoint.load("checkpoints", model=model, optimizer=optimizer) or 0
    ...
    checkpoint.save("checkpoints", step, model=model, optimizer=optimizer)

Every rank calls both. Imports the standard library and torch alone.
"""

from advisor.checkpoint.batches import Batches
from advisor.checkpoint.folder import CheckpointError
from advisor.checkpoint.loading import load
from advisor.checkpoint.saving import save, wait

__all__ = ["Batches", "CheckpointError", "load", "save", "wait"]

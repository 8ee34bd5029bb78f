"""Activations of a plain script's model recomputed in the backward pass, as its plan says."""

from typing import Any

from advisor.executor.in_process import blocks
from advisor.executor.in_process.plain_share import place

STATISTICS = (
    "{name} keeps statistics of the batches that it sees{where}, and recomputation would count each twice: write "
    'activation_checkpointing "none" in the plan'
)


def recompute(which: str, root: Any) -> None:
    """Have the blocks of a model recomputed, once; refuse those whose statistics would count each batch twice."""
    from torch.nn.modules.batchnorm import _NormBase

    root = getattr(root, "_orig_mod", root)  # of a compiled model
    for name, block in blocks.blocks(root).items():
        for part in block.modules():
            if isinstance(part, _NormBase) and part.track_running_stats:
                raise RuntimeError(STATISTICS.format(name=name, where=place()))
    blocks.recompute(root, which)

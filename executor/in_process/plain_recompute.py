"""Activations of a plain script's model recomputed in the backward pass, as its plan says."""

import functools
from typing import Any

from advisor.executor.in_process import blocks, whole
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


def steer_modules(modules: Any) -> None:
    """Have copies and pickles of a block be those of one process: the hooks that recompute it can't be pickled."""
    kind = modules.Module
    reduce = kind.__reduce_ex__

    @functools.wraps(reduce)
    def reduced(module: Any, protocol: Any) -> Any:
        from torch.distributed._composable.contract import STATE_KEY

        made = reduce(module, protocol)
        if STATE_KEY not in vars(module) or not isinstance(made, tuple) or len(made) < 3:
            return made
        return *made[:2], whole.without_sharding(made[2]), *made[3:]

    kind.__reduce_ex__ = reduced

"""Process groups for states in host memory: gloo beside NCCL, for the collectives on CPU tensors."""

import functools
from typing import Any


def steer_process_group(distributed: Any) -> None:
    """Start "nccl", and no backend at all, as "cpu:gloo,cuda:nccl": torch makes NCCL alone of both under torchrun."""
    import torch

    start = distributed.init_process_group

    @functools.wraps(start)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not torch.cuda.is_available():
            return start(backend, *args, **kwargs)
        both = backend is None or (isinstance(backend, str) and backend.lower() == "nccl")
        return start("cpu:gloo,cuda:nccl" if both else backend, *args, **kwargs)

    distributed.init_process_group = init_process_group

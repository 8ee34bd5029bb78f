"""Have all ranks share the one GPU of a machine, and talk through NCCL's sockets as if each had a host of its own.

With this folder in PYTHONPATH, and the GPU listed twice (pynvml.py beside this), everything of two ranks on GPUs runs:
CUDA, NCCL, torchrun, trials. What they take is no measure of two GPUs.
"""

import os

SET = type(os.environ).__setitem__


def shared(environment: "os._Environ[str]", name: str, value: str) -> None:
    """Set a variable, those of a rank so that it sees the one GPU."""
    if name == "LOCAL_RANK":
        value = "0"
    elif name == "CUDA_VISIBLE_DEVICES":
        value = "0" if value else value
    elif name == "RANK":
        SET(environment, "NCCL_HOSTID", f"rank{value}")  # NCCL refuses two ranks of one host on one GPU
    SET(environment, name, value)


# Only ranks set these, in themselves or, as torchrun does, before they start.
type(os.environ).__setitem__ = shared  # type: ignore[method-assign]
if "RANK" in os.environ:
    for given in ("RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES"):
        if given in os.environ:
            os.environ[given] = os.environ[given]

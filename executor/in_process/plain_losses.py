"""Functions of torch whose result for a batch is not the mean of those for its slices, computed over all ranks.

Losses that are means over what is not ignored, or over class weights; batch normalisation is plain_norm's.
"""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from advisor.executor.in_process.plain_norm import normalised
from advisor.executor.in_process.plain_share import Ranks

MEANS = ("cross_entropy", "nll_loss")


def steer(ranks: Ranks, functional: Any) -> None:
    """Change torch.nn.functional."""
    functional.batch_norm = normalised(ranks, functional.batch_norm)
    for name in MEANS:
        setattr(functional, name, averaged(ranks, getattr(functional, name)))
    if "torch._dynamo" in sys.modules:
        keep_out_of_graphs(sys.modules["torch._dynamo"])


def keep_out_of_graphs(dynamo: Any) -> None:
    """Have compiled models call these functions as they are: what ranks tell each other is no part of a graph."""
    functional = sys.modules["torch.nn.functional"]
    refused = getattr(dynamo.exc, "IncorrectUsage", RuntimeError)  # torch 2.11 has an exception of its own for it
    for name in ("batch_norm", *MEANS):
        function = getattr(functional, name)
        function._torchdynamo_disable = True
        # What was changed before dynamo listed the functions of torch is one of these by its name.
        with contextlib.suppress(refused):
            dynamo.disallow_in_graph(function)


def in_step(ranks: Ranks) -> bool:
    import torch

    return ranks.ranks > 1 and ranks.share is not None and torch.is_grad_enabled()


def averaged(ranks: Ranks, loss: Callable[..., Any]) -> Callable[..., Any]:
    """Divide a loss over classes by what counts in the whole batch, instead of in the slice."""
    signature = inspect.signature(loss)

    @functools.wraps(loss)
    def mean(*args: Any, **kwargs: Any) -> Any:

        if not in_step(ranks):
            return loss(*args, **kwargs)
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        given = call.arguments
        target, weight = given["target"], given["weight"]
        legacy = given["size_average"] is not None or given["reduce"] is not None
        if given["reduction"] != "mean" or legacy or target.is_floating_point():
            return loss(*args, **kwargs)
        valid = target != given["ignore_index"]
        counts = valid.double() if weight is None else weight.double()[target.clamp(0, len(weight) - 1)] * valid
        given["reduction"] = "sum"
        share = ranks.factor() / ranks.ranks
        total = ranks.total(counts.sum() * bool(share))
        return loss(*call.args, **call.kwargs) / (total * (share or 1.0)).to(given["input"].dtype)

    return mean

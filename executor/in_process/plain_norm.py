"""Batch normalisation in training by the statistics of the whole batch, of which each rank has a slice.

The ranks' statistics are gathered, in one collective a pass, and merged by their counts: on GPUs by the fused kernels
of torch.nn.SyncBatchNorm, in torch's operations elsewhere. A rank without a sample counts nothing.
"""

import functools
from collections.abc import Callable
from typing import Any

from advisor.executor.in_process.plain_share import Ranks

TWICE = (
    "batch normalisation over several ranks can't be differentiated twice (create_graph=True): its statistics are "
    "those of all ranks"
)


def normalised(ranks: Ranks, batch_norm: Callable[..., Any]) -> Callable[..., Any]:
    """Normalise by the statistics of the whole batch."""

    @functools.wraps(batch_norm)
    def synchronised(  # noqa: PLR0917 - as torch has it
        input: Any,
        running_mean: Any = None,
        running_var: Any = None,
        weight: Any = None,
        bias: Any = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        if not training or ranks.ranks == 1 or ranks.share is None:
            return batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
        return _over_ranks()(input, weight, bias, running_mean, running_var, momentum, eps, ranks)

    return synchronised


@functools.cache
def _over_ranks() -> Any:
    import torch
    import torch.distributed as dist

    class OverRanks(torch.autograd.Function):
        @staticmethod
        def forward(  # noqa: PLR0917
            context: Any,
            input: Any,
            weight: Any,
            bias: Any,
            running_mean: Any,
            running_var: Any,
            momentum: float,
            eps: float,
            ranks: Ranks,
        ) -> Any:
            context.ranks, context.counts = ranks, ranks.share is None or ranks.share.counts
            context.kernels = kernels = torch if input.is_cuda else InSteps
            input = dense(input)
            mean, spread = kernels.batch_norm_stats(input, eps)
            samples = input.numel() / input.shape[1] if context.counts else 0
            own = torch.cat([mean, spread, torch.full_like(mean[:1], samples)])
            every = torch.empty(ranks.ranks * len(own), dtype=own.dtype, device=own.device)
            dist.all_gather(list(every.chunk(ranks.ranks)), own, group=ranks.inner)
            means, spreads, counts = torch.split(every.view(ranks.ranks, -1), [len(mean), len(mean), 1], dim=1)
            counts = counts.flatten() if running_mean is None else counts.flatten().to(running_mean.dtype)
            mean, invstd = kernels.batch_norm_gather_stats_with_counts(
                input, means, spreads, running_mean, running_var, momentum, eps, counts
            )
            context.save_for_backward(input, weight, mean, invstd, counts.to(torch.int32))
            return kernels.batch_norm_elemt(input, weight, bias, mean, invstd, eps)

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            if torch.is_grad_enabled():
                raise RuntimeError(TWICE)
            input, weight, mean, invstd, counts = context.saved_tensors
            gradient, kernels, needed = dense(gradient), context.kernels, context.needs_input_grad[:3]
            total, total_centred, of_weight, of_bias = kernels.batch_norm_backward_reduce(
                gradient, input, mean, invstd, weight, *needed
            )
            of_input = None
            if needed[0]:
                totals = torch.cat([total, total_centred])
                dist.all_reduce(totals, group=context.ranks.inner)
                scale = None if weight is None else weight.to(mean.dtype)
                of_input = kernels.batch_norm_backward_elemt(
                    gradient, input, mean, invstd, scale, *totals.chunk(2), counts
                )
                if not context.counts:  # a sample that does not count moved no statistics
                    of_input = torch.zeros_like(of_input)
            return of_input, of_weight if needed[1] else None, of_bias if needed[2] else None, *[None] * 5

    return OverRanks.apply


def dense(tensor: Any) -> Any:
    """Return a tensor in a layout that the fused kernels take."""
    import torch

    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = layouts.get(tensor.ndim)
    kept = layout is not None and tensor.is_contiguous(memory_format=layout)
    return tensor if kept else tensor.contiguous()


class InSteps:
    """The kernels in torch's operations, under torch's names. A rank's `spread` is its variance, there it is invstd."""

    @staticmethod
    def batch_norm_stats(input: Any, eps: float) -> tuple[Any, Any]:
        import torch

        variance, mean = torch.var_mean(wide(input), _all_but_channels(input), correction=0)
        return mean, variance

    @staticmethod
    def batch_norm_gather_stats_with_counts(  # noqa: PLR0917
        input: Any,
        means: Any,
        spreads: Any,
        running_mean: Any,
        running_var: Any,
        momentum: float,
        eps: float,
        counts: Any,
    ) -> tuple[Any, Any]:
        shares = (counts / counts.sum()).unsqueeze(1)
        mean = (means * shares).sum(0)
        variance = ((spreads + (means - mean).square()) * shares).sum(0)
        unbiased = variance * (counts.sum() / (counts.sum() - 1).clamp(min=1))
        for running, new in ((running_mean, mean), (running_var, unbiased)):
            if running is not None:
                running.lerp_(new.to(running.dtype), momentum)
        return mean, (variance + eps).rsqrt()

    @staticmethod
    def batch_norm_elemt(  # noqa: PLR0917
        input: Any, weight: Any, bias: Any, mean: Any, invstd: Any, eps: float
    ) -> Any:
        shape = _of_channels(input)
        scale = invstd if weight is None else invstd * weight
        out = (wide(input) - mean.view(shape)) * scale.view(shape)
        return (out if bias is None else out + bias.view(shape)).to(input.dtype)

    @staticmethod
    def batch_norm_backward_reduce(
        gradient: Any, input: Any, mean: Any, invstd: Any, weight: Any, *needed: bool
    ) -> tuple[Any, Any, Any, Any]:
        dims, shape = _all_but_channels(input), _of_channels(input)
        total = wide(gradient).sum(dims)
        total_centred = (wide(gradient) * (wide(input) - mean.view(shape))).sum(dims)
        of_weight = None if weight is None or not needed[1] else (total_centred * invstd).to(weight.dtype)
        of_bias = None if not needed[2] else total.to(gradient.dtype if weight is None else weight.dtype)
        return total, total_centred, of_weight, of_bias

    @staticmethod
    def batch_norm_backward_elemt(  # noqa: PLR0917
        gradient: Any, input: Any, mean: Any, invstd: Any, weight: Any, total: Any, total_centred: Any, counts: Any
    ) -> Any:
        shape, count = _of_channels(input), counts.sum()
        scale = invstd if weight is None else invstd * weight
        centred = wide(input) - mean.view(shape)
        along = centred * (total_centred * invstd.square() / count).view(shape)
        return ((wide(gradient) - (total / count).view(shape) - along) * scale.view(shape)).to(input.dtype)


def wide(tensor: Any) -> Any:
    """Return a tensor in 32 bits or more."""
    import torch

    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _all_but_channels(input: Any) -> list[int]:
    return [0, *range(2, input.ndim)]


def _of_channels(input: Any) -> list[int]:
    return [1, -1, *[1] * (input.ndim - 2)]

"""Trace one micro-batch, forward and backward, and make a profile of it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import compress, groupby
from typing import Any

import torch
from msgspec import structs
from torch import nn
from torch.utils._pytree import tree_leaves

from advisor.rules.errors import AdvisorError
from advisor.rules.profile import Amount, Kernels, Moment, Precision, Profile, Unit, line
from advisor.trace.cuda import cuda_dispatch
from advisor.trace.fake import fakes, float_parameters_as, made_fake
from advisor.trace.follower import Follower, cast
from advisor.trace.meter import At

SAMPLES = (2, 6)  # micro-batches traced; every amount is the line through them
KINDS = ("matmul", "attention", "convolution", "batch_norm", "traffic")

FALL_BACK = "describe it instead, with --params or --layers and --hidden"

Batch = Callable[[int], Any]  # samples -> what the model takes
Loss = Callable[[nn.Module, Any], torch.Tensor]


def profile(
    make: Callable[[], nn.Module], batch: Batch, loss: Loss, precision: Precision, seq: int | None = None
) -> Profile:
    """Trace a model at two micro-batches.

    make: builds the model; batch: returns the input of so many samples; loss: runs the model and returns a scalar;
    seq: tokens of a sample. Under autocast the parameters are fp32; `bf16-params` is FSDP's mixed precision.
    """
    dtype = torch.bfloat16 if precision == "bf16-params" else torch.float32
    with fakes() as mode, cuda_dispatch():
        model = made_fake(make(), mode).train()
        float_parameters_as(dtype, model)
        small, large = (
            trace(model, cast(made_fake(batch(samples), mode), dtype), loss, precision) for samples in SAMPLES
        )
    if [at for at, _ in small.peaks] != [at for at, _ in large.peaks]:
        raise AdvisorError("the model runs other parts for a larger batch, which can't be traced", FALL_BACK)
    return profile_of(model, small, large, precision, seq)


def trace(model: nn.Module, batch: Any, loss: Loss, precision: Precision) -> Follower:
    """Run one micro-batch of fake tensors and return who followed it."""
    follower = Follower(model, torch.bfloat16 if precision == "bf16-params" else None)
    for tensor in tree_leaves(batch):
        if isinstance(tensor, torch.Tensor):
            follower.meter.follow(tensor)
    try:
        with ExitStack() as stack:
            if precision in ("bf16-autocast", "fp16-autocast"):
                dtype = torch.bfloat16 if precision == "bf16-autocast" else torch.float16
                stack.enter_context(torch.autocast("cpu", dtype))
            stack.enter_context(follower.meter)
            found = loss(model, batch)
            follower.end_forward()
        with follower.meter:
            found.backward()  # type: ignore[no-untyped-call]
            follower.end_backward()
    finally:
        follower.close()
    return follower


def profile_of(model: nn.Module, small: Follower, large: Follower, precision: Precision, seq: int | None) -> Profile:
    """Draw the lines through two traces, and put equal blocks that follow each other together."""
    owned = _owned(model, small)
    units = [_unit(index, owned[index], small, large) for index in range(len(small.parts))]
    there = [unit.kind == "block" or unit.params > 0 or unit.forward.launches > 0 for unit in units]
    before = [sum(there[:index]) for index in range(len(there))]
    return Profile(
        precision=precision,
        units=tuple(_folded(compress(units, there))),
        moments=tuple(_moments(small, large, before)),
        largest=_proportional(small.meter.largest, large.meter.largest),
        logits=_line(small.meter.logits, large.meter.logits),
        seq=seq,
        source="traced",
    )


def _unit(index: int, params: list[nn.Parameter], small: Follower, large: Follower) -> Unit:
    part = small.parts[index]

    def kernels(at: At) -> Kernels:
        one, two = small.meter.amounts[at], large.meter.amounts[at]
        return Kernels(**{kind: _line(one[kind], two[kind]) for kind in KINDS}, launches=int(two["launches"]))

    return Unit(
        name=part.name,
        kind="root" if part.block is None else "block",
        params=sum(p.numel() for p in params),
        trainable=sum(p.numel() for p in params if p.requires_grad),
        tensors=len(params),
        forward=kernels(At(index, "forward")),
        backward=kernels(At(index, "backward")),
        kept=_line(small.kept[index], large.kept[index]),
        entry=_line(small.entry[index], large.entry[index]),
    )


def _line(small: float, large: float) -> Amount:
    """Return the line through the two traces, or one near it that is negative for no micro-batch."""
    found = line(zip(SAMPLES, (small, large), strict=True))
    if found.per_sample < 0:
        return Amount(fixed=small)
    return found if found.at(1) >= 0 else Amount(per_sample=large / SAMPLES[1])


def _proportional(small: float, large: float) -> Amount:
    """Return the size of one tensor, which grows with the micro-batch or does not."""
    return Amount(fixed=large) if small == large else Amount(per_sample=large / SAMPLES[1])


def _owned(model: nn.Module, follower: Follower) -> list[list[nn.Parameter]]:
    """Return the parameters of each part: a block's own, and of the others where backward completes them."""
    owned: list[list[nn.Parameter]] = [[] for _ in follower.parts]
    seen: set[nn.Parameter] = set()
    for index, part in enumerate(follower.parts):
        if part.block is not None:
            owned[index] = [p for p in part.block.parameters() if p not in seen]
            seen.update(owned[index])
    for parameter in model.parameters():
        if parameter not in seen:
            owned[follower.owners.get(parameter, 0)].append(parameter)
    return owned


def _folded(units: Iterable[Unit]) -> Iterator[Unit]:
    """Put equal blocks that follow each other into one unit: their mean, as the first and the last differ a little."""
    for _, group in groupby(
        units,
        key=lambda u: (u.kind, u.params, u.trainable, u.forward.matmul, u.forward.convolution, u.forward.launches),
    ):
        equal = list(group)
        yield structs.replace(
            equal[0],
            count=len(equal),
            forward=_mean_kernels([unit.forward for unit in equal]),
            backward=_mean_kernels([unit.backward for unit in equal]),
            kept=_mean([unit.kept for unit in equal]),
            entry=_mean([unit.entry for unit in equal]),
        )


def _mean_kernels(some: Sequence[Kernels]) -> Kernels:
    launches = round(sum(kernels.launches for kernels in some) / len(some))
    return Kernels(**{kind: _mean([getattr(kernels, kind) for kernels in some]) for kind in KINDS}, launches=launches)


def _mean(amounts: Sequence[Amount]) -> Amount:
    fixed = sum(amount.fixed for amount in amounts) / len(amounts)
    return Amount(fixed=fixed, per_sample=sum(amount.per_sample for amount in amounts) / len(amounts))


def _moments(small: Follower, large: Follower, before: Sequence[int]) -> Iterator[Moment]:
    """Yield the peaks in the order of time; `before`: how many parts of the profile stand before each traced one."""
    for (at, low), (_, high) in zip(small.peaks, large.peaks, strict=True):
        name = f"{at.direction} of {large.parts[at.part].name}"
        yield Moment(name=name, live=_line(low.live, high.live), ready=high.ready, kept=before[at.part])

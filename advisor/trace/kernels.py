"""What one kernel costs: FLOP of products, bytes of the rest."""

from typing import Any, Literal, NamedTuple

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

Kind = Literal["matmul", "attention", "convolution", "batch_norm", "traffic"]

aten: Any = torch.ops.aten


class Cost(NamedTuple):
    kind: Kind
    amount: float  # FLOP; of batch_norm and traffic: bytes read and written


def _packets(*names: str) -> set[Any]:
    return {getattr(aten, name) for name in names}


# How many times the forward's FLOP; the backward pass multiplies five times instead of twice.
_ATTENTION = {
    aten._scaled_dot_product_flash_attention: 1.0,
    aten._scaled_dot_product_efficient_attention: 1.0,
    aten._scaled_dot_product_flash_attention_backward: 2.5,
    aten._scaled_dot_product_efficient_attention_backward: 2.5,
}
_NO_KERNEL = _packets(
    "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "detach", "lift_fresh", "alias"
)
_BATCH_NORM = _packets(
    "native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit", "cudnn_batch_norm",
    "cudnn_batch_norm_backward",
)  # fmt: skip
_ROWS = _packets("embedding", "index_select", "gather", "nll_loss_forward", "nll_loss2d_forward", "index")
_FILLS = _packets("zero_", "fill_")


def costs(func: Any, args: Any, kwargs: Any, out: Any) -> list[Cost]:
    """Return what a call of the dispatcher launches, one cost a kernel; none where it only makes room."""
    packet = func._overloadpacket
    if packet in _NO_KERNEL:
        return []
    results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
    if packet in _ATTENTION:
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
        once = attention_flops(named["query"], named["key"], causal=bool(named.get("is_causal")))
        return [Cost("attention", _ATTENTION[packet] * once)]
    # A convolution brings a change of layout around it.
    if packet is aten.convolution:
        return [Cost("convolution", convolution_flops(out, args[1])), Cost("traffic", size_of(args[0]) + size_of(out))]
    if packet is aten.convolution_backward:
        flops = sum(args[10][:2]) * convolution_flops(args[0], args[2])
        return [Cost("convolution", flops), Cost("traffic", size_of(args[0]) + sum(map(size_of, results[:1])))]
    if packet in flop_registry:
        return [Cost("matmul", float(flop_registry[packet](*args, **kwargs, out_val=out)))]
    written = sum(map(size_of, results))
    if packet in _FILLS:
        return [Cost("traffic", written)]
    if packet in _ROWS:  # a few rows of the table only
        return [Cost("traffic", 2.0 * written)]
    read = sum(size_of(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
    return [Cost("batch_norm" if packet in _BATCH_NORM else "traffic", written + read)]


def size_of(tensor: torch.Tensor) -> int:
    """Return the bytes that a kernel touches of a tensor; those of an expanded one are few."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def attention_flops(query: torch.Tensor, key: torch.Tensor, *, causal: bool) -> float:
    """Return the FLOP of the two products of attention: 4 b a s_q s_k d, half of it under a causal mask.

    query, key: (batch, heads, length, head size).
    """
    batch, heads, rows, size = query.shape
    return 4.0 * batch * heads * rows * key.shape[-2] * size * (0.5 if causal else 1.0)


def convolution_flops(out: torch.Tensor, weight: torch.Tensor) -> float:
    """Return the FLOP of a convolution: 2 for each output element and weight that meets it. Backward does it twice.

    out: (batch, channels out, ...); weight: (channels out, channels in / groups, ...).
    """
    return 2.0 * out.numel() * weight[0].numel()

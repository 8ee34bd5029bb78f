"""Makes the CPU's fake tensors go the way that CUDA's would: the same fused kernels, and autocast's lists for CUDA.

A build of torch without CUDA can't run the backward pass of tensors that claim to be on it. So the dispatcher's choices
are changed instead, where CUDA's differ: https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/autocast_mode.h for
the lists, `aten/src/ATen/native/` (`transformers/attention.cpp`, `Dropout.cpp`, `SoftMax.cpp`, `layer_norm.cpp`).
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.library import fallthrough_kernel

from advisor.trace.kernels import aten

_SIXTEEN_BIT = (torch.bfloat16, torch.float16)
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_FLASH_HEAD = 256  # elements of a head, at most, in flash attention

# Run in fp32.
_FP32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "dist",
    "pdist", "renorm", "logsumexp", "norm.Scalar", "norm.ScalarOpt_dim", "upsample_nearest1d",
    "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_nearest3d",
    "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa",
    "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)  # fmt: skip
# Give fp32 where the caller names no dtype.
_FP32_RESULT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
)  # fmt: skip
# Run in the widest dtype of their arguments.
_WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
)  # fmt: skip
# Of what the CPU's autocast does and CUDA's does not, this stays: products that CUDA casts one level below.
_BOTH = (
    "conv1d.padding", "conv2d.padding", "conv3d.padding", "_addmm_activation", "_native_multi_head_attention",
    "mkldnn_rnn_layer",
)  # fmt: skip


@contextmanager
def cuda_dispatch() -> Iterator[None]:
    """Change the dispatcher's choices for CPU tensors to those of CUDA; the old ones hold again afterwards."""
    with torch.library._scoped_library("aten", "IMPL") as library, _cuda_kernels():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that kernels are overridden
            _autocast(library)
            for name, kernel in _FUSED.items():
                library.impl(name, kernel, "AutogradCPU")
        yield


def _autocast(library: Any) -> None:
    for names, wrap in ((_FP32, _in_fp32), (_FP32_RESULT, _to_fp32), (_WIDEST, _in_widest)):
        for name in names:
            if _has(f"aten::{name}", "AutocastCUDA"):  # torch 2.11 leaves rms_norm alone
                library.impl(name, wrap(_overload(name)), "AutocastCPU")
    for name in _cpu_only():
        library.impl(name, fallthrough_kernel, "AutocastCPU")


def _cpu_only() -> Iterator[str]:
    """Yield what the CPU's autocast casts and CUDA's leaves alone."""
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        if namespace == "aten" and name not in _BOTH and _has(full, "AutocastCPU") and not _has(full, "AutocastCUDA"):
            yield name


def _has(name: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def _overload(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(aten, base), overload or "default")


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        narrow = value.dtype in _SIXTEEN_BIT and dtype == torch.float32
        return value.to(dtype) if narrow else value
    return type(value)(_cast(item, dtype) for item in value) if isinstance(value, list | tuple) else value


def _in_fp32(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return op(*_cast(args, torch.float32), **{k: _cast(v, torch.float32) for k, v in kwargs.items()})

    return kernel


def _to_fp32(op: Any) -> Callable[..., Any]:
    def kernel(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            named = "dtype" in kwargs or any(isinstance(value, torch.dtype) for value in args)
            if tensor.dtype in _SIXTEEN_BIT and not named:
                kwargs["dtype"] = torch.float32
            return op(tensor, *args, **kwargs)

    return kernel


def _in_widest(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        wide = any(value.dtype == torch.float32 for value in given)
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return op(*_cast(args, torch.float32), **kwargs) if wide else op(*args, **kwargs)

    return kernel


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """Keep a mask of one byte an element."""
    if train and 0 < p < 1:
        return aten.native_dropout(x, p, True)[0]  # type: ignore[no-any-return]
    return aten.dropout.default.decompose(x, p, train)  # type: ignore[no-any-return]


class _Widened(torch.autograd.Function):
    """Softmax, or its logarithm, that reads 16-bit input and writes fp32 without an fp32 copy between them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.ops.advisor.softmax(x)
        ctx.dtype = x.dtype
        ctx.save_for_backward(out)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return torch.ops.advisor.softmax_backward(grads[0], *ctx.saved_tensors, ctx.dtype)


def _softmax(op: Any) -> Callable[..., Tensor]:
    def kernel(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        if dtype == torch.float32 and x.dtype in _SIXTEEN_BIT:
            return _Widened.apply(x)  # type: ignore[no-untyped-call, no-any-return]
        return op.decompose(x, dim, dtype)  # type: ignore[no-any-return]

    return kernel


def _attention(  # noqa: PLR0917 - the signature is aten's
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Choose as CUDA does: flash for 16-bit without a mask, else memory-efficient, else products in steps."""
    given = (query, key, value)
    fused = all(tensor.dim() == 4 and tensor.dtype == query.dtype and tensor.stride(-1) == 1 for tensor in given)
    size = query.shape[-1]
    if fused and attn_mask is None and query.dtype in _SIXTEEN_BIT and size == value.shape[-1] <= _FLASH_HEAD:
        scale = size**-0.5 if scale is None else scale
        missing = -size % 8  # the kernel takes heads of a multiple of 8
        padded = [torch.nn.functional.pad(tensor, (0, missing)) for tensor in given] if missing else given
        out: Tensor = aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :size] if missing else out
    # A mask that is learned, as T5's table of positions is, goes step by step: seen in profiles of an H200.
    plain = attn_mask is None or (attn_mask.stride(-1) == 1 and not attn_mask.requires_grad)
    if fused and plain and key.shape[1] == query.shape[1]:
        bias = None if attn_mask is None else _bias(attn_mask, query, key)
        grads = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
        return aten._scaled_dot_product_efficient_attention(  # type: ignore[no-any-return]
            *given, bias, grads, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(  # type: ignore[no-any-return]
        *given, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def _bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Make of a mask what is added to the scores, seen in their full shape."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask, float("-inf"))
    return mask.expand(*query.shape[:3], key.shape[2])


def _grouped_mm(
    x: Tensor,
    weight: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Multiply the rows of all experts by one matrix: as much work, kept and gradient as by each row's own."""
    if x.dim() != 2 or weight.dim() != 3:
        raise NotImplementedError(f"grouped_mm of {x.dim()} by {weight.dim()} dimensions")
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):  # CUDA's autocast leaves it alone
        out = torch.mm(x, weight[0])
    return out if out_dtype is None else out.to(out_dtype)


class _RmsNorm(torch.autograd.Function):
    """Keeps its input and one number a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        out, scales = torch.ops.advisor.rms_norm(x, weight)
        ctx.save_for_backward(x, weight, scales)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return torch.ops.advisor.rms_norm_backward(grads[0], *ctx.saved_tensors)


@contextmanager
def _cuda_kernels() -> Iterator[None]:
    """Define the fused kernels that torch has for CUDA only."""
    with torch.library._scoped_library("advisor", "FRAGMENT") as library:
        for schema, kernel in _KERNELS.items():
            library.define(schema)
            library.impl(schema.partition("(")[0], kernel, "Meta")
        yield


def _normed(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.float32)


def _norm_gradients(g: Tensor, x: Tensor, weight: Tensor | None, scales: Tensor) -> tuple[Tensor, Tensor | None]:
    return torch.empty_like(x), None if weight is None else torch.empty_like(weight)


def _softmax_gradient(g: Tensor, out: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_like(out, dtype=dtype)


_KERNELS: dict[str, Callable[..., Any]] = {
    "rms_norm(Tensor x, Tensor? weight) -> (Tensor, Tensor)": _normed,
    "rms_norm_backward(Tensor g, Tensor x, Tensor? weight, Tensor scales) -> (Tensor, Tensor?)": _norm_gradients,
    "softmax(Tensor x) -> Tensor": lambda x: torch.empty_like(x, dtype=torch.float32),
    "softmax_backward(Tensor g, Tensor out, ScalarType dtype) -> Tensor": _softmax_gradient,
}


def _rms_norm(x: Tensor, shape: list[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Run one kernel where input and weight have one dtype, else step by step."""
    if len(shape) > 1 or (weight is not None and weight.dtype != x.dtype):
        return aten.rms_norm.default.decompose(x, shape, weight, eps)  # type: ignore[no-any-return]
    return _RmsNorm.apply(x, weight)  # type: ignore[no-untyped-call, no-any-return]


_FUSED: dict[str, Callable[..., Any]] = {
    "dropout": _dropout,
    "softmax.int": _softmax(aten.softmax.int),
    "log_softmax.int": _softmax(aten.log_softmax.int),
    "scaled_dot_product_attention": _attention,
    "rms_norm": _rms_norm,
    "_grouped_mm": _grouped_mm,
}

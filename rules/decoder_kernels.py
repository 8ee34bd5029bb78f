"""The kernels of a decoder, one row each, with the bytes that they read and write.

Symbols: h hidden, f MLP width, kv = KV heads x head size, V vocabulary, r bytes of an element of the residual stream,
c bytes of an element that enters a matrix product. Under autocast r = 4 and c = 2, else they are equal.

GPT-like blocks (LayerNorm) are plain PyTorch: one matrix for q, k and v, biases, GELU. Llama-like blocks (RMSNorm) are
those of the transformers library, eager: RMSNorm in single steps, rotary positions, SiLU(gate) x up, a loss on fp32
logits (models/llama/modeling_llama.py, loss/loss_utils.py; without a KV cache, as its Trainer runs it). Adapters are
those of the peft library (tuners/lora/layer.py): fp32, beside a 16-bit base.
"""

from collections.abc import Iterator
from typing import NamedTuple

from advisor.rules.decoder_shape import Shape

NF4_BYTES = 0.516  # per parameter: 4 bits and double-quantised scales, https://arxiv.org/abs/2305.14314


class Kernel(NamedTuple):
    """One launch. Matrix products and attention move no bytes here: their FLOP count instead."""

    name: str
    token: float = 0.0  # bytes for each token
    once: float = 0.0  # bytes for each micro-batch


def _cast(name: str, elements: int, read: int, written: int) -> Iterator[Kernel]:
    """Yield a copy into another dtype; nothing where it is the same."""
    if read != written:
        yield Kernel(f"cast {name}", (read + written) * elements)


def norm_forward(s: Shape) -> Iterator[Kernel]:
    if not s.llama:
        yield Kernel("layer norm", 2 * s.r * s.h)
        return
    yield from _cast("x to fp32", s.h, s.r, 4)
    yield Kernel("x^2", 8 * s.h)
    yield Kernel("mean", 4 * s.h)
    yield Kernel("+ epsilon")
    yield Kernel("rsqrt")
    yield Kernel("x / rms", 8 * s.h)
    yield from _cast("x / rms back", s.h, 4, s.r)
    yield Kernel("times weight", 2 * s.r * s.h)


def norm_backward(s: Shape) -> Iterator[Kernel]:
    if not s.llama:
        yield Kernel("layer norm", 3 * s.r * s.h)
        return
    yield Kernel("times weight", 2 * s.r * s.h)
    if not s.adapters:
        yield Kernel("gradient x (x / rms)", 3 * s.r * s.h)
        yield Kernel("sum: weight gradient", s.r * s.h)
    yield from _cast("gradient to fp32", s.h, s.r, 4)
    yield Kernel("gradient x x", 12 * s.h)
    yield Kernel("gradient / rms", 8 * s.h)
    yield Kernel("sum over h", 4 * s.h)
    yield from [Kernel("rsqrt: 3 products of a row's numbers")] * 3
    yield Kernel("mean", 4 * s.h)
    yield Kernel("x", 8 * s.h)
    yield Kernel("2 x", 8 * s.h)
    yield Kernel("times gradient", 12 * s.h)
    yield Kernel("add both ways to x", 12 * s.h)
    yield from _cast("gradient back", s.h, 4, s.r)


def _base_forward(s: Shape, rows: int, columns: int, *, normed: bool, bias: bool = False) -> Iterator[Kernel]:
    if s.quantized:
        yield Kernel("dequantize weight", once=(NF4_BYTES + 2) * rows * columns)
    if s.cast and not s.adapters:
        yield Kernel("cast weight", once=6 * rows * columns)
        if bias:
            yield Kernel("cast bias", once=6 * columns)
    if s.cast and normed:
        yield from _cast("input", rows, s.r, s.c)
    yield Kernel("matrix product")


def _base_backward(s: Shape, rows: int, columns: int, *, normed: bool, bias: bool = False) -> Iterator[Kernel]:
    if s.quantized:
        yield Kernel("dequantize weight", once=(NF4_BYTES + 2) * rows * columns)
    yield Kernel("matrix product: input gradient")
    if s.cast and normed:
        yield from _cast("input gradient", rows, s.c, s.r)
    if s.adapters:
        return
    yield Kernel("matrix product: weight gradient")
    if bias:
        yield Kernel("sum: bias gradient", s.c * columns)
    if s.cast:
        yield Kernel("cast weight gradient", once=6 * rows * columns)
        if bias:
            yield Kernel("cast bias gradient", once=6 * columns)


def linear_forward(s: Shape, rows: int, columns: int, *, normed: bool = False, bias: bool = False) -> Iterator[Kernel]:
    """Yield a product with a matrix of rows x columns; `normed`: its input has the residual stream's dtype."""
    yield from _base_forward(s, rows, columns, normed=normed, bias=bias)
    if not s.adapters:
        return
    yield from _cast("input to fp32", rows, s.c, 4)
    if s.cast:
        yield from _cast("input back", rows, 4, s.c)
        yield from [Kernel("cast A, cast B")] * 2
    yield from [Kernel("times A, times B")] * 2
    yield Kernel("scale", 2 * s.c * columns)
    yield Kernel("add", 3 * s.c * columns)


def linear_backward(s: Shape, rows: int, columns: int, *, normed: bool = False, bias: bool = False) -> Iterator[Kernel]:
    """Yield the gradients of input and weight; beside a frozen weight, those of the adapters A and B."""
    yield from _base_backward(s, rows, columns, normed=normed, bias=bias)
    if not s.adapters:
        return
    yield Kernel("scale", 2 * s.c * columns)
    yield from [Kernel("input and weight gradient of A and B")] * 4
    if s.cast:
        yield from [Kernel("cast gradients of A, B")] * 2
        yield from _cast("input gradient to fp32", rows, s.c, 4)
    yield from _cast("input gradient back", rows, 4, s.c)
    yield Kernel("add to the base's input gradient", 3 * s.c * rows)


def rotary_forward(s: Shape) -> Iterator[Kernel]:
    """Yield what turns q and k: x cos + (-x2, x1) sin."""
    for n in (s.h, s.kv):
        yield Kernel("x cos", (s.c + s.product) * n)
        yield Kernel("-x2", s.c * n)
        yield Kernel("concatenate (-x2, x1)", 2 * s.c * n)
        yield Kernel("times sin", (s.c + s.product) * n)
        yield Kernel("add", 3 * s.product * n)
        yield from _cast("back", n, s.product, s.c)


def rotary_backward(s: Shape) -> Iterator[Kernel]:
    for n in (s.h, s.kv):
        yield from _cast("gradient", n, s.c, s.product)
        for _ in ("cos", "sin"):
            yield Kernel("gradient x cos or sin", 2 * s.product * n)
            yield from _cast("back", n, s.product, s.c)
        yield Kernel("-x2", s.c * n)
        yield from [Kernel("half into zeros", 1.5 * s.c * n)] * 2
        yield from [Kernel("add", 3 * s.c * n)] * 2
        yield Kernel("heads behind tokens", 2 * s.c * n)


def block_forward(s: Shape) -> Iterator[Kernel]:
    """Yield the kernels of one block in order."""
    bias = not s.llama
    yield from norm_forward(s)
    for matrix in s.attention_matrices:
        yield from linear_forward(s, *matrix, normed=True, bias=bias)
    if s.llama:
        yield from rotary_forward(s)
    yield Kernel("attention")
    yield from linear_forward(s, s.h, s.h, bias=bias)
    yield Kernel("add residual", (2 * s.r + s.c) * s.h)
    yield from norm_forward(s)
    for matrix in s.mlp_matrices:
        yield from linear_forward(s, *matrix, normed=True, bias=bias)
    yield Kernel("SiLU" if s.gated else "GELU", 2 * s.c * s.f)
    if s.gated:
        yield Kernel("times up", 3 * s.c * s.f)
    yield from linear_forward(s, s.f, s.h, bias=bias)
    yield Kernel("add residual", (2 * s.r + s.c) * s.h)


def block_backward(s: Shape) -> Iterator[Kernel]:
    """Yield the kernels of one block's backward pass in order."""
    bias = not s.llama
    yield from _cast("gradient", s.h, s.r, s.c)
    yield from linear_backward(s, s.f, s.h, bias=bias)
    if s.gated:
        yield from [Kernel("gradient x up, gradient x SiLU", 3 * s.c * s.f)] * 2
    yield Kernel("SiLU" if s.gated else "GELU", 3 * s.c * s.f)
    for matrix in s.mlp_matrices:
        yield from linear_backward(s, *matrix, normed=True, bias=bias)
    yield from [Kernel("add gradients of one input", 3 * s.r * s.h)] * (len(s.mlp_matrices) - 1)
    yield from norm_backward(s)
    yield Kernel("add residual's gradient", 3 * s.r * s.h)
    yield from _cast("gradient", s.h, s.r, s.c)
    yield from linear_backward(s, s.h, s.h, bias=bias)
    yield Kernel("attention")
    if s.llama:
        yield from rotary_backward(s)
    else:
        yield Kernel("stack gradients of q, k, v", 2 * s.c * (s.h + 2 * s.kv))
        yield Kernel("heads behind tokens", 2 * s.c * (s.h + 2 * s.kv))
    for matrix in s.attention_matrices:
        yield from linear_backward(s, *matrix, normed=True, bias=bias)
    yield from [Kernel("add gradients of one input", 3 * s.r * s.h)] * (len(s.attention_matrices) - 1)
    yield from norm_backward(s)
    yield Kernel("add residual's gradient", 3 * s.r * s.h)


def before_forward(s: Shape) -> Iterator[Kernel]:
    """Yield the kernels in front of the blocks: embedding and positions."""
    yield Kernel("rows of the embedding", 2 * s.r * s.h)
    if s.learned:
        yield Kernel("0, 1, 2, ...", once=8 * s.seq)
        yield Kernel("rows of the positions", once=2 * s.r * s.h * s.seq)
        yield Kernel("add positions", 2 * s.r * s.h, s.r * s.h * s.seq)
    if s.llama:
        angles = s.seq * s.h // s.heads
        yield from [Kernel("positions x frequencies", once=2 * angles)] * 3
        yield from [Kernel("twice, cos, sin, scale", once=8 * angles)] * 5
        yield from [Kernel("cast cos, sin", once=6 * angles)] * (2 if s.r == 2 else 0)


def before_backward(s: Shape) -> Iterator[Kernel]:
    if s.adapters:
        return
    if s.learned:
        yield Kernel("sum over samples", s.r * s.h, s.r * s.h * s.seq)
        yield Kernel("positions' gradient", once=2 * s.r * s.h * s.seq)
    yield Kernel("embedding's gradient", s.r * s.h, s.r * s.vocab * s.h)
    if s.tied:
        yield Kernel("add the head's gradient", once=3 * s.r * s.vocab * s.h)


def behind_forward(s: Shape) -> Iterator[Kernel]:
    """Yield the kernels behind the blocks: final norm, head and loss."""
    yield from norm_forward(s)
    yield from _base_forward(s._replace(quantized=False), s.h, s.vocab, normed=True)
    if s.llama:
        yield from _cast("logits to fp32", s.vocab, s.c, 4)
        yield Kernel("shift labels")
    yield Kernel("copy labels", 16)
    yield Kernel("log softmax", (s.logits + s.scores) * s.vocab)
    yield Kernel("negative log likelihood")


def behind_backward(s: Shape) -> Iterator[Kernel]:
    yield Kernel("1")
    yield Kernel("negative log likelihood", 2 * s.scores * s.vocab)
    yield Kernel("log softmax", (2 * s.scores + s.logits) * s.vocab)
    if s.llama:
        yield from _cast("logits' gradient", s.vocab, 4, s.c)
    yield from _base_backward(s._replace(quantized=False), s.h, s.vocab, normed=True)
    yield from norm_backward(s)

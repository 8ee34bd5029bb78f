"""What one micro-batch of a GPT-like or Llama-like decoder costs, by formulas instead of a trace.

Which models they are, and every kernel with its bytes: `decoder_kernels`; symbols as there. T tokens of a micro-batch.
Compared with traces of such models by `tests/rules/test_decoder_against_trace.py`.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from advisor.rules import decoder_kernels as kernels
from advisor.rules.decoder_shape import Shape, shape_of
from advisor.rules.job import Job, block_matmul_params, block_params, count_params, root_params
from advisor.rules.profile import Amount, Kernels, Moment, Precision, Profile, Unit


class Counts(NamedTuple):
    """Parameters or trainable parameters of each part."""

    before: int
    block: int
    behind: int


def decoder_profile(job: Job, precision: Precision) -> Profile:
    """Return the profile that a trace of the job's decoder would give.

    Where `job.params` differs from the architecture's own count, parameters and products are scaled to it.
    """
    s = shape_of(job, precision)
    params = split_params(job, s)
    trainable = split_trainable(job, s, params)
    before, behind = _before(s, params, trainable), _behind(s, params, trainable)
    block = _block(job, s, params, trainable)
    return Profile(
        precision=precision,
        units=(before, block, behind),
        moments=tuple(_moments(s, before, block, behind)),
        largest=Amount(per_sample=float(s.seq * s.vocab * max(s.scores, s.logits))),
        logits=Amount(per_sample=float(s.seq * s.vocab * loss_bytes(s))),
        seq=s.seq,
        source="formula",
    )


def split_params(job: Job, s: Shape) -> Counts:
    """Return the parameters of each part, which sum to `job.params`."""
    arch = s.arch
    counted = count_params(arch, job.seq)
    block = job.params * block_params(arch) // counted
    head = s.h * (1 if s.llama else 2) + (0 if s.tied else s.vocab * s.h)
    before = job.params * (root_params(arch, job.seq) - head) // counted
    return Counts(before, block, job.params - before - arch.layers * block)


def split_trainable(job: Job, s: Shape, params: Counts) -> Counts:
    """Return the trained parameters of each part, which sum to `job.trainable_params`: those of the blocks first."""
    if job.trainable_params == job.params:
        return params
    block = min(params.block, job.trainable_params // s.arch.layers)
    rest = job.trainable_params - s.arch.layers * block
    behind = min(params.behind, rest)
    return Counts(min(params.before, rest - behind), block, behind)


def norm_kept(s: Shape) -> float:
    """Return the bytes per token that a norm keeps.

    LayerNorm: x and two numbers. RMSNorm in single steps: fp32 x, x / rms for the weight's gradient, two numbers.
    """
    if not s.llama:
        return s.r * s.h + 8
    return (4 + (0 if s.adapters else s.r)) * s.h + 8


def inputs_kept(s: Shape, matrices: int) -> float:
    """Return the bytes per token of a norm's output that its matrices keep: under autocast each casts a copy."""
    return s.c * s.h * (matrices if s.cast else 1)


def attention_kept(s: Shape) -> float:
    """Return the bytes per token of q, k, v, output and log-sum-exp: c (2 h + 2 kv) + 4 heads.

    K and V are not expanded to all heads; adapters keep the output once more.
    """
    return s.c * (2 * s.h + 2 * s.kv) + 4 * s.heads + (s.c * s.h if s.adapters else 0)


def mlp_kept(s: Shape) -> float:
    """Return the bytes per token inside the MLP: 2 c f, or 4 c f of gate, SiLU, up and product."""
    return s.c * s.f * (4 if s.gated else 2)


def block_kept(s: Shape) -> float:
    """Return the bytes per token that one block keeps, weights' copies left out.

    Examples at kv = h: GPT with f = 4 h: 32 h in bf16, 64 h in fp32, 36 h under autocast; Llama with f = 2.6875 h: 83 h
    in fp32, 55.5 h under autocast; each and a few numbers a token.
    """
    return (
        2 * norm_kept(s)
        + inputs_kept(s, len(s.attention_matrices))
        + attention_kept(s)
        + inputs_kept(s, len(s.mlp_matrices))
        + mlp_kept(s)
    )


def copies(s: Shape, elements: float) -> float:
    """Return the bytes of the 16-bit copies that autocast keeps of fp32 weights: 2 a parameter."""
    return 2.0 * elements if s.cast and not s.adapters else 0.0


def loss_bytes(s: Shape) -> int:
    """Return the bytes per logit at the peak of the loss: log-probabilities, their gradient, and the logits' gradient.

    10 under autocast, 6 in bf16, 12 in fp32 and wherever the logits are cast to fp32 first. A script that still holds
    16-bit logits adds 2. Example: 14 x 8192 tokens x 50304 words = 5.4 GiB.
    """
    return 2 * s.scores + s.logits


def matmul_flops(elements: float) -> float:
    """Return the FLOP per token of products with so many matrix elements: 2 each. https://arxiv.org/abs/2001.08361."""
    return 2.0 * elements


def attention_flops(s: Shape) -> float:
    """Return the forward FLOP per token of both products of attention under a causal mask: 4 h s / 2.

    https://arxiv.org/abs/2204.02311, appendix B, counts the full square. Backward multiplies five times, not twice.
    """
    return 2.0 * s.h * s.seq


def _kernels(s: Shape, rows: Iterable[kernels.Kernel], matmul: float = 0.0, attention: float = 0.0) -> Kernels:
    """Sum rows up; matmul, attention: FLOP per token."""
    listed = list(rows)
    return Kernels(
        matmul=Amount(per_sample=matmul * s.seq),
        attention=Amount(per_sample=attention * s.seq),
        traffic=Amount(
            fixed=float(sum(kernel.once for kernel in listed)),
            per_sample=float(sum(kernel.token for kernel in listed) * s.seq),
        ),
        launches=len(listed),
    )


def _before(s: Shape, params: Counts, trainable: Counts) -> Unit:
    """Return the embedding, whose output and words' numbers stay."""
    angles = 2 * s.r * s.seq * s.h // s.heads if s.llama else 0
    return Unit(
        name="before the blocks",
        kind="root",
        params=params.before,
        trainable=trainable.before,
        tensors=2 if s.learned else 1,
        forward=_kernels(s, kernels.before_forward(s)),
        backward=_kernels(s, kernels.before_backward(s)),
        kept=Amount(fixed=float(angles), per_sample=float((s.r * s.h + 8) * s.seq)),
        entry=Amount(),
    )


def _block(job: Job, s: Shape, params: Counts, trainable: Counts) -> Unit:
    arch = s.arch
    matrices = block_matmul_params(arch) * job.params / count_params(arch, job.seq)
    bias = 0 if s.llama else block_params(arch) - block_matmul_params(arch) - 4 * s.h
    forward = matmul_flops(matrices + (trainable.block if s.adapters else 0))
    backward = matmul_flops(matrices + 2 * trainable.block if s.adapters else 2 * matrices)
    linears = len(s.attention_matrices) + len(s.mlp_matrices) + 2
    return Unit(
        name="block",
        kind="block",
        count=arch.layers,
        params=params.block,
        trainable=trainable.block,
        tensors=2 + linears if s.llama else 4 + 2 * linears,
        forward=_kernels(s, kernels.block_forward(s), forward, attention_flops(s)),
        backward=_kernels(s, kernels.block_backward(s), backward, 2.5 * attention_flops(s)),
        kept=Amount(fixed=copies(s, matrices + bias), per_sample=block_kept(s) * s.seq),
        entry=Amount(per_sample=float(s.r * s.h * s.seq)),
    )


def _behind(s: Shape, params: Counts, trainable: Counts) -> Unit:
    """Return final norm, head and loss; the norm's input is counted as the last block's output."""
    head = s.vocab * s.h
    return Unit(
        name="behind the blocks",
        kind="root",
        params=params.behind,
        trainable=trainable.behind,
        tensors=(1 if s.llama else 2) + (0 if s.tied else 1),
        forward=_kernels(s, kernels.behind_forward(s), matmul_flops(head)),
        backward=_kernels(s, kernels.behind_backward(s), matmul_flops(head) * (1 if s.adapters else 2)),
        kept=Amount(
            fixed=copies(s, head),
            per_sample=(norm_kept(s) - s.r * s.h + inputs_kept(s, 1) + s.scores * s.vocab) * s.seq,
        ),
        entry=Amount(per_sample=float(s.r * s.h * s.seq)),
    )


def _moments(s: Shape, before: Unit, block: Unit, behind: Unit) -> Iterator[Moment]:
    """Yield what may be the peak of a micro-batch: the loss, each block's backward pass, the embedding's gradient.

    A gradient that takes an input's place is as large as it, so that what is kept up to a part stands for both. The
    shared matrix of tied embeddings gets the head's gradient first and holds it until the embedding's is there.
    """
    gradient = 0.0 if s.adapters else float((2 if s.r == 2 else 4) * s.vocab * s.h)
    waiting = gradient if s.tied else 0.0
    logits = s.seq * s.vocab
    blocks = [_plus(before.kept, block.kept, times=count) for count in range(block.count + 1)]
    loss = Amount(per_sample=float((loss_bytes(s) - s.scores) * logits))
    yield Moment(
        name="backward of the loss", live=_plus(_plus(blocks[-1], behind.kept), loss), ready=0, kept=1 + block.count
    )
    for name, extra in _head_peaks(s, behind):
        yield Moment(name=name, live=_plus(blocks[-1], extra), ready=0, kept=1 + block.count)
    ready = behind.trainable
    for index in reversed(range(block.count)):
        for extra, done in _block_peaks(s, block):
            live = _plus(_plus(blocks[index + 1], extra), Amount(fixed=waiting))
            yield Moment(name=f"backward of block {index}", live=live, ready=ready + done, kept=1 + index)
        ready += block.trainable
    live = _plus(before.kept, Amount(fixed=gradient + waiting))
    yield Moment(name="backward of the embedding", live=live, ready=ready, kept=0)


def _head_peaks(s: Shape, behind: Unit) -> Iterator[tuple[str, Amount]]:
    """Yield what the head's weight gradient adds: logits' and input's gradient, input; then its cast to fp32."""
    if s.adapters:
        return
    weight = s.vocab * s.h
    beside = Amount(fixed=behind.kept.fixed, per_sample=float(s.c * (2 * s.h + s.vocab) * s.seq))
    yield "backward of the head", _plus(beside, Amount(fixed=float(s.c * weight)))
    if s.cast:
        yield "cast of the head's gradient", Amount(fixed=6.0 * weight, per_sample=float((s.r + s.c) * s.h * s.seq))


def _block_peaks(s: Shape, block: Unit) -> Iterator[tuple[Amount, int]]:
    """Yield what a block's backward pass adds to what is kept, at its two worst moments, and the gradients ready then.

    At the gradients of the last matrix: its output's gradient (where that is a cast copy), its input's and its own.
    Then, with a gate, the gradients of both factors at once: 2 c f, less the copy of that matrix. A quantized base has
    one block's matrices in 16 bits.
    """
    weight = s.h * s.f
    whole = 2.0 * block_matmul_params(s.arch) if s.quantized else 0.0
    own = 0 if s.adapters else weight
    cast = s.c * s.h if s.r != s.c else 0
    yield Amount(fixed=whole + s.c * own, per_sample=float((cast + s.c * s.f) * s.seq)), 0
    if s.gated:
        ready = min(own, block.trainable)
        yield Amount(fixed=whole - copies(s, own), per_sample=float(2 * s.c * s.f * s.seq)), ready


def _plus(one: Amount, other: Amount, times: int = 1) -> Amount:
    return Amount(fixed=one.fixed + times * other.fixed, per_sample=one.per_sample + times * other.per_sample)

"""The sizes of a decoder and the dtypes it runs in, as its formulas need them."""

from typing import NamedTuple

from advisor.rules.job import Architecture, Job
from advisor.rules.profile import Precision


class Shape(NamedTuple):
    """The sizes of a decoder, in elements, and how it is trained."""

    arch: Architecture
    h: int
    f: int
    kv: int
    heads: int
    vocab: int
    seq: int
    r: int  # bytes
    c: int  # bytes
    cast: bool  # every matrix casts its input, and its weight unless that is frozen
    llama: bool  # RMSNorm, separate q, k and v, rotary positions, no biases
    gated: bool
    tied: bool
    learned: bool  # positions
    adapters: bool  # beside a frozen base
    quantized: bool  # the base

    @property
    def scores(self) -> int:
        """Return the bytes of a log-probability: fp32 but where the whole loss runs in 16 bits."""
        return 4 if self.llama or self.cast else self.c

    @property
    def logits(self) -> int:
        """Return the bytes of a logit that log softmax reads, and of the gradient that it returns."""
        return 4 if self.llama else self.c

    @property
    def product(self) -> int:
        """Return the bytes of an element after RMSNorm or rotation, which multiply by an fp32 tensor under autocast."""
        return max(self.r, self.c)

    @property
    def attention_matrices(self) -> tuple[tuple[int, int], ...]:
        """Return (in, out) of the matrices that read the first norm's output."""
        return (
            ((self.h, self.h), (self.h, self.kv), (self.h, self.kv))
            if self.llama
            else ((self.h, self.h + 2 * self.kv),)
        )

    @property
    def mlp_matrices(self) -> tuple[tuple[int, int], ...]:
        """Return (in, out) of the matrices that read the second norm's output."""
        return ((self.h, self.f),) * (2 if self.gated else 1)


def shape_of(job: Job, precision: Precision) -> Shape:
    """Return the shape of the job's decoder; the job must have an architecture.

    Less than half of the parameters trained means adapters beside a frozen base, which is kept in 16 bits (see
    `memory.states`), and its residual stream with it.
    """
    arch = job.architecture
    if arch is None:
        raise ValueError("a job without an architecture has no decoder")
    adapters = 2 * job.trainable_params < job.params
    autocast = precision in ("bf16-autocast", "fp16-autocast")
    return Shape(
        arch=arch,
        h=arch.hidden,
        f=arch.ffn,
        kv=arch.kv_heads * (arch.hidden // arch.heads),
        heads=arch.heads,
        vocab=arch.vocab,
        seq=job.seq,
        r=2 if precision == "bf16-params" or (autocast and adapters) else 4,
        c=4 if precision == "fp32" else 2,
        cast=autocast,
        llama=arch.rmsnorm,
        gated=arch.gated_mlp,
        tied=arch.tied_embeddings,
        learned=arch.learned_positions,
        adapters=adapters,
        quantized=job.quantize is not None,
    )

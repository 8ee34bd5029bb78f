"""What is to be trained: parameters, architecture, batch, precision, optimizer."""

import math
from typing import Literal

from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Value
from advisor.rules.profile import Profile

Optimizer = Literal["adamw", "adamw-8bit", "adafactor", "sgd", "sgd-momentum", "muon"]

# layers and hidden size of well-known decoders: where the layer count of an assumed architecture comes from.
# Below 1e9: GPT-3 table 2.1, https://arxiv.org/abs/2005.14165; above: Llama, https://arxiv.org/abs/2302.13971
# and Llama 2, https://arxiv.org/abs/2307.09288.
KNOWN_SHAPES = (
    (125e6, 12, 768),
    (350e6, 24, 1024),
    (760e6, 24, 1536),
    (1.3e9, 24, 2048),
    (2.7e9, 32, 2560),
    (6.7e9, 32, 4096),
    (13e9, 40, 5120),
    (33e9, 60, 6656),
    (69e9, 80, 8192),
    (175e9, 96, 12288),
)
LARGEST_PARAMS = 1e14


class Architecture(Value, frozen=True, kw_only=True):
    """A decoder of equal blocks. Sizes are counts of elements."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int  # width of the MLP
    vocab: int
    gated_mlp: bool  # SwiGLU: three matrices instead of two
    rmsnorm: bool  # and no biases; else LayerNorm with biases
    tied_embeddings: bool = False
    learned_positions: bool = False


class Job(Value, frozen=True, kw_only=True):
    """One training job. `global_batch` counts samples (sequences) per optimizer step over all ranks."""

    params: int
    trainable_params: int  # equal to `params` unless LoRA or a frozen base
    architecture: Architecture | None  # None: not a decoder; then `profiles` say what it costs
    seq: int  # tokens per sample; 1 where samples are no sequences
    global_batch: int
    micro_batch: int | None = None  # samples per rank and forward; None: to be chosen
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    optimizer: Optimizer = "adamw"
    quantize: Literal["nf4"] | None = None  # storage of the frozen base
    allow: tuple[str, ...] = ()  # changes that the user permits, as `--allow` names them
    profiles: tuple[Profile, ...] = ()  # of the traced model, one for each precision


def block_params(arch: Architecture) -> int:
    """Count the parameters of one block.

    Attention 2 h^2 + 2 h h_kv, MLP 2 h f (3 h f with SwiGLU), two norms; LayerNorm blocks have biases throughout.
    Example: h = 2048, 16 heads, f = 8192, LayerNorm gives 50,358,272.
    """
    h, f = arch.hidden, arch.ffn
    h_kv = arch.kv_heads * (h // arch.heads)
    matrices = block_matmul_params(arch)
    if arch.rmsnorm:
        return matrices + 2 * h
    return matrices + (h + 2 * h_kv) + h + f + h + 4 * h


def block_matmul_params(arch: Architecture) -> int:
    """Count the parameters of one block that are multiplied with activations."""
    h_kv = arch.kv_heads * (arch.hidden // arch.heads)
    attention = 2 * arch.hidden**2 + 2 * arch.hidden * h_kv
    return attention + (3 if arch.gated_mlp else 2) * arch.hidden * arch.ffn


def root_params(arch: Architecture, seq: int) -> int:
    """Count the parameters outside the blocks: embedding, head, positions, final norm."""
    embeddings = arch.vocab * arch.hidden * (1 if arch.tied_embeddings else 2)
    positions = seq * arch.hidden if arch.learned_positions else 0
    return embeddings + positions + (1 if arch.rmsnorm else 2) * arch.hidden


def count_params(arch: Architecture, seq: int) -> int:
    """Count all parameters.

    Example: 12 layers of 768, 12 heads, f = 3072, V = 50304, 1024 learned positions, untied: 163,109,376.
    """
    return arch.layers * block_params(arch) + root_params(arch, seq)


def assume_architecture(params: float) -> tuple[Architecture, int]:
    """Choose a decoder of about `params` parameters, and the sequence length such models are trained with.

    Below 1e9 a GPT-2 like one (LayerNorm, GELU, 50304 words, 1024 tokens; below 30e6 with 256 characters as words),
    from there on a Llama like one (RMSNorm, SwiGLU of 8/3 h, 32000 words, 2048 tokens). The layer count is that of the
    known model nearest in size; the hidden size, a multiple of 64 or 128, solves 12 L h^2 + 2 V h = params.
    """
    layers = min(KNOWN_SHAPES, key=lambda shape: abs(math.log(shape[0] / params)))[1]
    llama = params >= 1e9
    vocab, seq, step = (32000, 2048, 128) if llama else (50304 if params >= 30e6 else 256, 1024, 64)
    a, b = 12.0 * layers, 2.0 * vocab
    root = (math.sqrt(b * b + 4 * a * params) - b) / (2 * a)
    hidden = max(step, step * round(root / step))
    ffn = 256 * math.ceil(8 * hidden / 3 / 256) if llama else 4 * hidden
    heads = max(1, hidden // step)
    return (
        Architecture(
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=heads,
            ffn=ffn,
            vocab=vocab,
            gated_mlp=llama,
            rmsnorm=llama,
            learned_positions=not llama,
        ),
        seq,
    )


def lora_params(arch: Architecture, rank: int) -> int:
    """Count the adapters' parameters: r (d_in + d_out) for each matrix of each block. https://arxiv.org/abs/2106.09685."""
    h, h_kv, f = arch.hidden, arch.kv_heads * (arch.hidden // arch.heads), arch.ffn
    attention = 2 * (h + h) + 2 * (h + h_kv)
    return arch.layers * rank * (attention + (3 if arch.gated_mlp else 2) * (h + f))


def check_job(job: Job) -> Job:
    """Return the job, or raise an AdvisorError that names the first size that makes no sense."""
    arch = job.architecture
    shape = (
        {}
        if arch is None
        else {
            "--layers": arch.layers,
            "--hidden": arch.hidden,
            "--heads": arch.heads,
            "--kv-heads": arch.kv_heads,
            "--ffn": arch.ffn,
            "--vocab": arch.vocab,
        }
    )
    sizes = {
        "--params": job.params,
        **shape,
        "--seq": job.seq,
        "--global-batch": job.global_batch,
        "--micro-batch": 1 if job.micro_batch is None else job.micro_batch,
        "--trainable-params": job.trainable_params,
    }
    for option, size in sizes.items():
        if not 1 <= size <= LARGEST_PARAMS:
            raise AdvisorError(
                f"{option} is {size:g}; it must be between 1 and {LARGEST_PARAMS:g}", f"give {option} again"
            )
    if arch is not None and arch.hidden % arch.heads:
        raise AdvisorError(
            f"the hidden size {arch.hidden} is no multiple of {arch.heads} heads", "give --hidden and --heads that fit"
        )
    if arch is not None and arch.heads % arch.kv_heads:
        raise AdvisorError(
            f"{arch.heads} heads cannot share {arch.kv_heads} KV heads evenly", "give a --kv-heads that divides --heads"
        )
    if job.trainable_params > job.params:
        raise AdvisorError(
            f"{job.trainable_params:g} trainable of {job.params:g} parameters", "give a smaller --trainable-params"
        )
    if job.micro_batch and job.global_batch % job.micro_batch:
        raise AdvisorError(
            f"a global batch of {job.global_batch} is no multiple of the micro-batch {job.micro_batch}",
            "give a --micro-batch that divides --global-batch",
        )
    return job

"""The formulas of a decoder against worked examples, and what must hold for any decoder."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.rules.decoder import block_kept, decoder_profile, loss_bytes
from advisor.rules.decoder_kernels import block_backward, block_forward
from advisor.rules.decoder_shape import Shape, shape_of
from advisor.rules.job import Architecture, Job, block_matmul_params, count_params, lora_params
from advisor.rules.profile import Precision, Profile

PRECISIONS: tuple[Precision, ...] = ("bf16-autocast", "fp16-autocast", "bf16-params", "fp32")
GPT2 = Architecture(
    layers=12, hidden=768, heads=12, kv_heads=12, ffn=3072, vocab=50304, gated_mlp=False, rmsnorm=False,
    learned_positions=True,
)  # fmt: skip
LLAMA2 = Architecture(
    layers=32, hidden=4096, heads=32, kv_heads=32, ffn=11008, vocab=32000, gated_mlp=True, rmsnorm=True
)
MIB, GIB = 1024**2, 1024**3


def job_of(architecture: Architecture, seq: int = 1024, **fields: object) -> Job:
    params = count_params(architecture, seq)
    given = {"params": params, "trainable_params": params, "global_batch": 64} | fields
    return Job(architecture=architecture, seq=seq, **given)  # type: ignore[arg-type]


def wide(architecture: Architecture, **sizes: int) -> Shape:
    return shape_of(job_of(replace(architecture, hidden=2048, heads=16, kv_heads=16, **sizes)), "fp32")


def per_hidden(architecture: Architecture, precision: Precision) -> float:
    """Return the bytes of a block of 2048 for each token and hidden element, a row's few numbers left out."""
    kv_heads = architecture.kv_heads * 16 // architecture.heads
    ffn = 5504 if architecture.gated_mlp else 8192
    shape = shape_of(job_of(replace(architecture, hidden=2048, heads=16, kv_heads=kv_heads, ffn=ffn), 2048), precision)
    return (block_kept(shape) - 16 - 4 * 16) / 2048


def step_flops(profile: Profile, samples: int = 1) -> float:
    return sum(
        unit.count * (kernels.matmul.at(samples) + kernels.attention.at(samples))
        for unit in profile.units
        for kernels in (unit.forward, unit.backward)
    )


def peak(profile: Profile, samples: int) -> float:
    return max(moment.live.at(samples) for moment in profile.moments)


@pytest.mark.parametrize(("precision", "expected"), [("fp32", 64), ("bf16-params", 32), ("bf16-autocast", 36)])
def test_a_gpt_block_keeps_what_was_measured(precision: Precision, expected: float) -> None:
    assert per_hidden(GPT2, precision) == expected


@pytest.mark.parametrize(("precision", "expected"), [("fp32", 83), ("bf16-autocast", 55.5)])
def test_a_llama_block_keeps_what_was_measured(precision: Precision, expected: float) -> None:
    """Under autocast 67.6 with the copies of the weights: 12.06 at 4096 tokens."""
    assert per_hidden(LLAMA2, precision) == expected


def test_autocast_keeps_a_16_bit_copy_of_each_weight_of_a_block() -> None:
    architecture = replace(LLAMA2, hidden=2048, heads=16, kv_heads=16, ffn=5504)
    block = decoder_profile(job_of(architecture, 2048), "bf16-autocast").units[1]
    assert block.kept.fixed == 2 * block_matmul_params(architecture)
    assert block.kept.at(2) / (4096 * 2048) == pytest.approx(67.6, rel=0.002)


def test_grouped_queries_save_four_bytes_per_token_of_the_missing_heads_in_bf16() -> None:
    grouped = replace(LLAMA2, kv_heads=8)
    assert per_hidden(LLAMA2, "bf16-params") - per_hidden(grouped, "bf16-params") == 4 * (1 - 1 / 4)


def test_checkpointing_gpt2_frees_what_was_measured() -> None:
    """8 samples of 1024 tokens under autocast: 5228 -> 2756 MiB."""
    block = decoder_profile(job_of(GPT2), "bf16-autocast").units[1]
    freed = block.count * (block.kept.at(8) - block.entry.at(8))
    assert freed == pytest.approx((5228 - 2756) * MIB, rel=0.01)


@pytest.mark.parametrize(
    ("architecture", "precision", "expected"),
    [
        (GPT2, "bf16-autocast", 10),
        (GPT2, "bf16-params", 6),
        (GPT2, "fp32", 12),
        (LLAMA2, "bf16-autocast", 12),
        (LLAMA2, "bf16-params", 12),
        (LLAMA2, "fp32", 12),
    ],
)
def test_the_loss_holds_so_many_bytes_per_logit(
    architecture: Architecture, precision: Precision, expected: int
) -> None:
    job = job_of(architecture)
    profile = decoder_profile(job, precision)
    assert profile.logits.at(8) == expected * 8 * 1024 * architecture.vocab


@pytest.mark.parametrize(("vocab", "gib"), [(50304, 5.4), (128256, 13.7)])
def test_logits_of_8192_tokens_that_the_script_still_holds_need_what_was_measured(vocab: int, gib: float) -> None:
    shape = shape_of(job_of(replace(LLAMA2, vocab=vocab)), "bf16-autocast")
    assert (loss_bytes(shape) + shape.c) * 8192 * vocab / GIB == pytest.approx(gib, abs=0.06)


def test_gpt2_computes_six_flop_per_matrix_parameter_and_token_and_attention_beside() -> None:
    profile = decoder_profile(job_of(GPT2), "bf16-autocast")
    matmul = sum(u.count * (u.forward.matmul.at(1) + u.backward.matmul.at(1)) for u in profile.units)
    assert matmul / 1024 == pytest.approx(7.42e8, rel=0.001)
    square = 2 * profile.units[1].forward.attention.at(1)  # without the mask
    assert 3 * 12 * square / 1024 == pytest.approx(1.13e8, rel=0.003)


def test_adapters_leave_out_the_weight_gradients_of_the_base() -> None:
    whole = decoder_profile(job_of(LLAMA2), "bf16-autocast")
    adapted = decoder_profile(job_of(LLAMA2, trainable_params=lora_params(LLAMA2, 16)), "bf16-autocast")
    assert adapted.trainable == lora_params(LLAMA2, 16)
    assert step_flops(adapted) == pytest.approx(4 / 6 * step_flops(whole), rel=0.04)
    assert adapted.units[1].kept.fixed == 0


def test_a_quantized_base_has_one_block_in_16_bits_at_a_time() -> None:
    fields = {"trainable_params": lora_params(LLAMA2, 16)}
    plain = decoder_profile(job_of(LLAMA2, **fields), "bf16-autocast")
    quantized = decoder_profile(job_of(LLAMA2, quantize="nf4", **fields), "bf16-autocast")
    last = [next(m for m in profile.moments if "block" in m.name) for profile in (plain, quantized)]
    assert last[1].live.fixed - last[0].live.fixed == 2 * block_matmul_params(LLAMA2)


def test_tied_embeddings_hold_the_heads_gradient_until_the_end() -> None:
    tied = decoder_profile(job_of(replace(GPT2, tied_embeddings=True)), "fp32")
    last = tied.moments[-1]
    assert last.live.fixed == 2 * 4 * 50304 * 768
    assert last.ready == tied.params - tied.units[0].params


def test_moments_go_back_from_the_loss_to_the_embedding_while_gradients_gather() -> None:
    profile = decoder_profile(job_of(GPT2), "bf16-autocast")
    assert profile.moments[0].name == "backward of the loss"
    assert profile.moments[-1].name == "backward of the embedding"
    ready = [moment.ready for moment in profile.moments]
    kept = [moment.kept for moment in profile.moments]
    assert ready == sorted(ready)
    assert kept == sorted(kept, reverse=True)


def test_every_kernel_of_a_block_is_named() -> None:
    shape = wide(LLAMA2)
    rows = [*block_forward(shape), *block_backward(shape)]
    assert all(row.name for row in rows)
    assert sum(row.name == "attention" for row in rows) == 2


@st.composite
def architectures(draw: st.DrawFn) -> Architecture:
    groups, kv_heads = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 4, 8]))
    hidden = groups * kv_heads * draw(st.sampled_from([64, 128]))
    llama = draw(st.booleans())
    return Architecture(
        layers=draw(st.integers(1, 48)),
        hidden=hidden,
        heads=groups * kv_heads,
        kv_heads=kv_heads,
        ffn=draw(st.integers(1, 5)) * hidden,
        vocab=draw(st.integers(2, 200_000)),
        gated_mlp=draw(st.booleans()),
        rmsnorm=llama,
        tied_embeddings=draw(st.booleans()),
        learned_positions=not llama,
    )


@settings(max_examples=40, deadline=None)
@given(architectures(), st.sampled_from(PRECISIONS), st.integers(1, 10**12), st.integers(1, 10**12))
def test_a_profile_has_exactly_the_parameters_of_the_job(
    architecture: Architecture, precision: Precision, one: int, other: int
) -> None:
    params, trainable = max(one, other), min(one, other)
    profile = decoder_profile(job_of(architecture, params=params, trainable_params=trainable), precision)
    assert profile.params == params
    # a part can't train more than it has, and all blocks train alike: of a few adapters' parameters some may be left
    assert trainable - architecture.layers < profile.trainable <= trainable
    assert all(0 <= unit.trainable <= unit.params for unit in profile.units)
    assert max(moment.ready for moment in profile.moments) <= trainable


@settings(max_examples=40, deadline=None)
@given(architectures(), st.sampled_from(PRECISIONS), st.sampled_from(["layers", "hidden", "vocab"]), st.integers(1, 16))
def test_a_larger_model_never_needs_less(
    architecture: Architecture, precision: Precision, grown: str, samples: int
) -> None:
    larger = replace(architecture, **{grown: 2 * getattr(architecture, grown)})
    small, large = (decoder_profile(job_of(arch), precision) for arch in (architecture, larger))
    assert peak(large, samples) >= peak(small, samples)
    assert step_flops(large, samples) >= step_flops(small, samples)


@settings(max_examples=40, deadline=None)
@given(architectures(), st.sampled_from(PRECISIONS), st.integers(1, 64))
def test_more_samples_never_need_less(architecture: Architecture, precision: Precision, samples: int) -> None:
    profile = decoder_profile(job_of(architecture), precision)
    assert peak(profile, samples + 1) >= peak(profile, samples)
    assert step_flops(profile, samples + 1) >= step_flops(profile, samples)

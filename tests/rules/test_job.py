import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.rules.errors import AdvisorError
from advisor.rules.job import Architecture, Job, assume_architecture, check_job, count_params, lora_params


def gpt2_small() -> Architecture:
    return Architecture(
        layers=12,
        hidden=768,
        heads=12,
        kv_heads=12,
        ffn=3072,
        vocab=50304,
        gated_mlp=False,
        rmsnorm=False,
        learned_positions=True,
    )


def test_parameters_are_counted_exactly() -> None:
    assert count_params(gpt2_small(), seq=1024) == 163_109_376


def test_llama_2_7b_is_counted_exactly() -> None:
    llama = Architecture(
        layers=32, hidden=4096, heads=32, kv_heads=32, ffn=11008, vocab=32000, gated_mlp=True, rmsnorm=True
    )
    assert count_params(llama, seq=4096) == 6_738_415_616


@given(st.floats(30e6, 1e12))
def test_an_assumed_architecture_has_about_the_parameters_asked_for(params: float) -> None:
    architecture, seq = assume_architecture(params)
    assert count_params(architecture, seq) == pytest.approx(params, rel=0.2)
    assert architecture.hidden % architecture.heads == 0


def test_thirteen_billion_parameters_are_assumed_to_be_shaped_like_llama() -> None:
    architecture, seq = assume_architecture(13e9)
    assert (architecture.layers, architecture.hidden, architecture.ffn, seq) == (40, 5120, 13824, 2048)


def test_lora_adapters_have_rank_times_both_sides_of_each_matrix() -> None:
    block = 2 * (768 + 768) + 2 * (768 + 768) + 2 * (768 + 3072)
    assert lora_params(gpt2_small(), rank=8) == 12 * 8 * block


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"params": -1}, "--params"),
        ({"seq": 0}, "--seq"),
        ({"micro_batch": 3}, "micro-batch"),
        ({"trainable_params": 10**12}, "trainable"),
    ],
)
def test_sizes_that_make_no_sense_are_refused_by_the_option_that_gave_them(change: dict[str, int], word: str) -> None:
    fields = {"params": 163_109_376, "trainable_params": 163_109_376, "seq": 1024, "global_batch": 64} | change
    with pytest.raises(AdvisorError, match=word):
        check_job(Job(architecture=gpt2_small(), **fields))  # type: ignore[arg-type]

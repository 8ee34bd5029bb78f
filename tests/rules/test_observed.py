import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.rules.job import Architecture, count_params
from advisor.rules.observed import Observed, architecture_of, job_of, plan_as_run
from advisor.rules.plan import Plan


def gpt(layers: int, hidden: int, vocab: int, positions: int) -> dict[str, tuple[int, ...]]:
    """Name and shape the parameters of a GPT with fused q, k and v, as nanoGPT-like scripts build it."""
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (vocab, hidden), "wpe.weight": (positions, hidden)}
    for layer in range(layers):
        for name, shape in {
            "ln_1": (hidden,),
            "attn.qkv": (3 * hidden, hidden),
            "attn.proj": (hidden, hidden),
            "ln_2": (hidden,),
            "mlp.0": (4 * hidden, hidden),
            "mlp.2": (hidden, 4 * hidden),
        }.items():
            shapes[f"blocks.{layer}.{name}.weight"] = shape
            shapes[f"blocks.{layer}.{name}.bias"] = shape[:1]
    return shapes | {"ln_f.weight": (hidden,), "ln_f.bias": (hidden,), "head.weight": (vocab, hidden)}


def llama(layers: int, hidden: int, ffn: int, vocab: int, kv: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(layers):
        for name, shape in {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (ffn, hidden),
            "mlp.up_proj": (ffn, hidden),
            "mlp.down_proj": (hidden, ffn),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}


def seen(shapes: dict[str, tuple[int, ...]], batch: tuple[int, ...] = (8, 256)) -> Observed:
    total = sum(a * (b[0] if b else 1) for a, *b in shapes.values())
    return Observed(parameters=shapes, trainable=total, inputs=(batch,), autocast="bfloat16", forwards_per_step=2)


@given(st.integers(2, 12), st.integers(1, 8), st.integers(300, 3000))
def test_the_sizes_of_a_gpt_are_read_off_its_parameters(layers: int, heads: int, vocab: int) -> None:
    hidden = 64 * heads
    found = architecture_of(gpt(layers, hidden, 5000 + vocab, 256))
    assert found is not None
    assert (found.layers, found.hidden, found.ffn, found.vocab) == (layers, hidden, 4 * hidden, 5000 + vocab)
    assert (found.gated_mlp, found.rmsnorm, found.tied_embeddings, found.learned_positions) == (
        False,
        False,
        False,
        True,
    )
    job = job_of(seen(gpt(layers, hidden, 5000 + vocab, 256)), ranks=2)
    assert job is not None
    assert job.params == count_params(found, 256)


@pytest.mark.parametrize(("kv", "kv_heads"), [(1024, 16), (256, 4), (64, 1), (100, 16)])
def test_keys_and_values_that_heads_share_are_seen_fused_or_not(kv: int, kv_heads: int) -> None:
    apart = llama(2, 1024, 2816, 32000, kv)
    fused = {name: shape for name, shape in apart.items() if ".k_proj" not in name and ".v_proj" not in name}
    fused |= {name: (1024 + 2 * kv, 1024) for name in fused if ".q_proj" in name}
    for shapes in (apart, fused):
        found = architecture_of(shapes)
        assert found is not None
        assert (found.ffn, found.kv_heads, found.gated_mlp) == (2816, kv_heads, True)


def test_a_llama_has_a_gated_mlp_and_no_biases() -> None:
    found = architecture_of(llama(4, 512, 1408, 32000, 128))
    assert found == Architecture(
        layers=4, hidden=512, heads=8, kv_heads=2, ffn=1408, vocab=32000, gated_mlp=True, rmsnorm=True
    )


def test_the_batch_and_precision_of_the_script_go_into_the_plan() -> None:
    observed = seen(gpt(2, 64, 5000, 256))
    job = job_of(observed, ranks=2)
    assert job is not None
    plan = plan_as_run(Plan(gpus=("GPU0", "GPU1"), strategy="ddp"), job, observed)
    assert (plan.micro_batch, plan.accumulation, plan.global_batch) == (8, 2, 32)
    assert plan.precision == "bf16-autocast"


@pytest.mark.parametrize(
    ("shapes", "batch"),
    [
        ({"conv.weight": (64, 3, 7, 7), "fc.weight": (10, 64)}, (32, 3, 224, 224)),
        ({"0.weight": (64, 32), "2.weight": (10, 64)}, (32, 32)),
        ({}, (32, 32)),
        (gpt(2, 64, 5000, 256), (32, 3, 224, 224)),
    ],
)
def test_other_models_are_not_taken_for_transformers(
    shapes: dict[str, tuple[int, ...]], batch: tuple[int, ...]
) -> None:
    assert job_of(seen(shapes, batch) if shapes else Observed(parameters={}, trainable=0, inputs=(batch,)), 2) is None

"""What models are fed with that came without a batch: those of libraries, and plain ones of each kind."""

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.rules.errors import AdvisorError
from advisor.rules.profile import Precision, Profile

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.slow

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


def traced(name: str, precision: Precision = "bf16-autocast", **given: Any) -> Profile:
    from advisor.trace.factory import subject
    from advisor.trace.step import profile

    found = subject(name, **given)
    return profile(found.make, found.batch, found.loss, precision, found.seq)


def blocks_of(profile: Profile) -> list[tuple[str, int]]:
    return [(unit.name, unit.count) for unit in profile.units if unit.kind == "block"]


def config(folder: Path, **values: Any) -> str:
    (folder / "config.json").write_text(json.dumps(values))
    return str(folder)


def forward_flops(profile: Profile) -> float:
    kernels = [(unit.count, unit.forward) for unit in profile.units]
    return sum(n * (k.matmul.per_sample + k.convolution.per_sample + k.attention.per_sample) for n, k in kernels)


def test_a_decoder_of_a_config_file_predicts_tokens(tmp_path: Path) -> None:
    name = config(tmp_path, model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=1203, **SMALL)
    profile = traced(name, seq=96)
    assert (profile.seq, blocks_of(profile)) == (96, [("model.layers.0", 2)])
    assert profile.logits.per_sample >= 96 * 1203 * 8


def test_a_config_without_a_class_is_a_decoder_of_the_length_it_says(tmp_path: Path) -> None:
    name = config(tmp_path, model_type="gpt2", n_embd=64, n_layer=2, n_head=4, n_positions=80, vocab_size=1203)
    assert traced(name).seq == 80


def test_an_encoder_with_a_class_for_each_sample_has_no_logits_for_tokens(tmp_path: Path) -> None:
    kind = "BertForSequenceClassification"
    name = config(tmp_path, model_type="bert", architectures=[kind], vocab_size=1203, **SMALL)
    profile = traced(name, seq=96)
    assert blocks_of(profile) == [("bert.encoder.layer.0", 2)]
    assert profile.logits.per_sample < 96 * 1203


def test_two_stacks_are_both_traced_and_back(tmp_path: Path) -> None:
    name = config(
        tmp_path, model_type="t5", architectures=["T5ForConditionalGeneration"], d_model=64, d_kv=16, d_ff=128,
        num_layers=3, num_heads=4, vocab_size=1203,
    )  # fmt: skip
    profile = traced(name, seq=96)
    # the first of each stack has the table of positions as well
    assert [kind for kind in blocks_of(profile) if kind[0].startswith("encoder")] == [
        ("encoder.block.0", 1),
        ("encoder.block.1", 2),
    ]
    assert [count for name, count in blocks_of(profile) if name.startswith("decoder")] == [1, 2]
    for unit in profile.units:
        assert unit.backward.matmul.per_sample == pytest.approx(2 * unit.forward.matmul.per_sample, rel=0.02)


def test_a_mixture_of_experts_runs_as_many_rows_as_are_chosen(tmp_path: Path) -> None:
    name = config(
        tmp_path, model_type="mixtral", architectures=["MixtralForCausalLM"], num_local_experts=4,
        num_experts_per_tok=2, num_key_value_heads=4, vocab_size=1203, **SMALL,
    )  # fmt: skip
    (block,) = (unit for unit in traced(name, seq=96).units if unit.kind == "block")
    attention, router, expert = 4 * 64 * 64, 64 * 4, 3 * 64 * 128
    assert block.params == attention + router + 4 * expert + 2 * 64
    assert block.forward.matmul.per_sample == 2 * 96 * (attention + router + 2 * expert)


def test_a_vision_model_of_transformers_gets_the_images_of_its_configuration(tmp_path: Path) -> None:
    name = config(
        tmp_path, model_type="vit", architectures=["ViTForImageClassification"], image_size=64, patch_size=16,
        num_channels=4, **SMALL,
    )  # fmt: skip
    profile = traced(name)
    patches = profile.units[0]
    assert (profile.seq, blocks_of(profile)[0][1]) == (None, 2)
    assert patches.forward.convolution.per_sample == 2 * 64 * 4 * 64 * 64


def test_a_model_of_torchvision_costs_what_its_authors_say() -> None:
    profile = traced("torchvision.models:resnet18")
    assert profile.params == 11_689_512
    assert forward_flops(profile) == pytest.approx(2 * 1.814e9, rel=0.001)  # multiply-adds


class Words(nn.Module):  # type: ignore[misc,name-defined]
    """A language model that computes its own loss, as nanoGPT does, and all scores only for that."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(1203, 32), nn.Linear(32, 1203)

    def forward(self, idx: Any, targets: Any = None) -> Any:
        x = self.words(idx)
        if targets is None:
            return self.head(x[:, [-1]]), None
        scores = self.head(x)
        return scores, nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


class Detector(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Conv2d(3, 4, 3)

    def forward(self, x: Any) -> Any:
        out = self.net(x)
        return {"boxes": out.abs().mean(), "classes": out.square().mean()}


class Nothing(nn.Linear):  # type: ignore[misc,name-defined]
    def forward(self, x: Any) -> Any:
        return None


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> str:
    """Name this file's models as a module of the user's."""
    import sys
    import types

    module = types.ModuleType("mine")
    vars(module).update(Words=Words, Detector=Detector, Nothing=lambda: Nothing(4, 4))
    module.lone = lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 5))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mine", module)
    return "mine"


def test_a_model_that_computes_its_own_loss_is_given_targets(mine: str) -> None:
    profile = traced(f"{mine}:Words", seq=40)
    assert sum(unit.forward.matmul.per_sample for unit in profile.units) == 2 * 40 * 32 * 1203


def test_a_dictionary_of_losses_is_summed(mine: str) -> None:
    (unit,) = traced(f"{mine}:Detector").units
    assert unit.backward.convolution == unit.forward.convolution  # weights only: the image needs no gradient


def test_any_model_takes_numbers_of_the_shape_that_is_given(mine: str) -> None:
    profile = traced(f"{mine}:lone", shape=(3, 4))
    assert sum(unit.forward.matmul.per_sample for unit in profile.units) == 2 * 12 * 5


def test_a_model_that_returns_no_tensor_needs_a_loss(mine: str) -> None:
    with pytest.raises(AdvisorError, match="returns a NoneType, of which no loss can be made"):
        traced(f"{mine}:Nothing", shape=(4,))

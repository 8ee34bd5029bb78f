"""Profiles of small models that are traced, against what can be counted by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from advisor.rules.profile import Profile, Unit

torch = pytest.importorskip("torch")
F, nn = torch.nn.functional, torch.nn

pytestmark = pytest.mark.slow

HIDDEN, HEADS, SEQ, WORDS, LAYERS = 256, 4, 120, 1203, 3
BLOCK = 12 * HIDDEN**2 + 13 * HIDDEN  # parameters
MATRICES = 12 * HIDDEN**2
LOGITS = SEQ * WORDS  # elements a sample


class Block(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, h: int = HIDDEN) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.out = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.fc1, self.fc2 = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x: Any) -> Any:
        b, t, h = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, h // HEADS).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, h))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Gpt(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, *, tied: bool = False, run: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, WORDS, bias=False)
        self.run = run
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        for block in self.blocks:
            x = self.run(block, x) if self.run else block(x)
        return self.head(self.norm(x))


def ids(samples: int) -> Any:
    return torch.randint(WORDS, (samples, SEQ + 1))


def next_word(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def traced(make: Callable[[], Any], precision: Any = "bf16-autocast") -> Profile:
    from advisor.trace.step import profile

    return profile(make, ids, next_word, precision, SEQ)


def block_of(profile: Profile) -> Unit:
    (block,) = (unit for unit in profile.units if unit.kind == "block")
    return block


def everything(profile: Profile, amount: Callable[[Unit], float]) -> float:
    return sum(unit.count * amount(unit) for unit in profile.units)


# Bytes per token and hidden size, https://arxiv.org/abs/2205.05198 without dropout and with flash attention; + 24: two
# norms and the attention keep a mean, a deviation or a sum in fp32 for each row.
@pytest.mark.parametrize(
    ("precision", "bytes_each", "copies"), [("bf16-autocast", 36, 2), ("bf16-params", 32, 0), ("fp32", 64, 0)]
)
def test_a_gpt_block_keeps_what_the_formula_says(precision: Any, bytes_each: int, copies: int) -> None:
    block = block_of(traced(Gpt, precision))
    assert (block.count, block.params, block.trainable, block.tensors) == (LAYERS, BLOCK, BLOCK, 12)
    rows = 2 * 2 * 4 + HEADS * 4
    assert block.kept.per_sample == pytest.approx(SEQ * (bytes_each * HIDDEN + rows), rel=1e-3)
    assert block.kept.fixed == pytest.approx(copies * (BLOCK - 4 * HIDDEN), rel=0.01, abs=2048)  # norms stay fp32
    assert block.entry.per_sample == SEQ * HIDDEN * (2 if precision == "bf16-params" else 4)


def test_products_cost_six_flops_for_each_parameter_and_token() -> None:
    profile = traced(Gpt)
    forward = everything(profile, lambda unit: unit.forward.matmul.per_sample)
    backward = everything(profile, lambda unit: unit.backward.matmul.per_sample)
    assert forward == 2 * SEQ * (LAYERS * MATRICES + WORDS * HIDDEN)
    assert backward == 2 * forward


def test_causal_attention_costs_half_the_square_and_two_and_a_half_times_that_backward() -> None:
    block = block_of(traced(Gpt))
    assert block.forward.attention.per_sample == 2 * SEQ**2 * HIDDEN
    assert block.backward.attention.per_sample == 5 * SEQ**2 * HIDDEN


def test_the_loss_under_autocast_peaks_at_ten_bytes_for_each_logit() -> None:
    # log-probabilities in bf16 and, cast for the loss, in fp32; then the fp32 gradient of these
    assert traced(Gpt).logits.per_sample == pytest.approx(10 * LOGITS, rel=0.001)


def test_the_largest_tensor_is_that_of_the_logits() -> None:
    assert traced(Gpt, "fp32").largest.per_sample == pytest.approx(4 * LOGITS, rel=0.001)


def test_moments_run_forward_through_the_parts_and_back_with_more_and_more_gradients_ready() -> None:
    profile = traced(Gpt)
    names = [moment.name for moment in profile.moments if "behind blocks" not in moment.name]
    parts = ["before the blocks", *(f"blocks.{index}" for index in range(LAYERS))]
    assert names == [f"forward of {part}" for part in parts] + [f"backward of {part}" for part in parts[::-1]]
    ready = [moment.ready for moment in profile.moments]
    assert ready == sorted(ready)
    assert (ready[0], profile.trainable - WORDS * HIDDEN) == (0, ready[-1])
    assert [moment.kept for moment in profile.moments if moment.name == "backward of blocks.2"] == [LAYERS]


def test_no_amount_is_negative_for_any_micro_batch() -> None:
    profile = traced(Gpt)
    amounts = [moment.live for moment in profile.moments]
    for unit in profile.units:
        amounts += [unit.kept, unit.entry]
        amounts += [getattr(k, kind) for k in (unit.forward, unit.backward) for kind in ("matmul", "traffic")]
    assert all(amount.at(samples) >= 0 for amount in amounts for samples in (1, 1000))


def test_a_tied_head_is_counted_once_and_is_whole_at_the_embedding() -> None:
    untied, tied = traced(Gpt), traced(lambda: Gpt(tied=True))
    assert untied.params - tied.params == WORDS * HIDDEN
    assert (tied.units[0].params, tied.units[-1].params) == (WORDS * HIDDEN, 2 * HIDDEN)


def with_adapter() -> Any:
    model = Gpt().requires_grad_(False)
    for block in model.blocks:
        block.adapter = nn.Sequential(nn.Linear(HIDDEN, 8, bias=False), nn.Linear(8, HIDDEN, bias=False))
        block.register_forward_hook(lambda module, args, out: out + module.adapter(args[0]))
    return model


def test_a_frozen_base_takes_no_weight_gradients() -> None:
    profile = traced(with_adapter)
    adapters = 2 * 8 * HIDDEN
    assert (profile.params, profile.trainable) == (traced(Gpt).params + LAYERS * adapters, LAYERS * adapters)
    assert (LAYERS - 1) * adapters <= profile.moments[-1].ready <= LAYERS * adapters
    assert block_of(profile).kept.per_sample < block_of(traced(Gpt)).kept.per_sample
    # input gradients of all but the first block, whose input needs none; both of the adapters
    backward = everything(profile, lambda unit: unit.backward.matmul.per_sample)
    forward = everything(profile, lambda unit: unit.forward.matmul.per_sample)
    assert backward < 1.1 * forward


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_blocks_keep_their_input_and_run_again(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    plain = traced(Gpt)
    profile = traced(lambda: Gpt(run=lambda block, x: checkpoint(block, x, use_reentrant=reentrant)))
    blocks = [unit for unit in profile.units if unit.kind == "block"]
    assert sum(unit.count for unit in blocks) == LAYERS
    for unit in blocks:
        assert unit.kept.per_sample <= 1.01 * SEQ * HIDDEN * 4
        # The other kind stops before the last matrix, whose result nothing keeps.
        again = MATRICES if reentrant else MATRICES - 4 * HIDDEN**2
        assert unit.backward.matmul.per_sample == 2 * SEQ * (2 * MATRICES + again)
    assert max(m.live.at(8) for m in profile.moments) < max(m.live.at(8) for m in plain.moments)


class Cnn(nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.deep = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.deep(F.relu(self.norm(self.first(x)))).mean((2, 3)))


def test_convolutions_count_their_groups_and_no_gradient_of_the_image() -> None:
    from advisor.trace.feed import own_loss
    from advisor.trace.step import profile

    found = profile(Cnn, lambda n: torch.randn(n, 3, 32, 32), own_loss, "fp32")
    (unit,) = found.units
    first, deep = 2 * 16 * 32 * 32 * 27, 2 * 16 * 32 * 32 * 9
    assert unit.kind == "root" and found.seq is None
    assert unit.forward.convolution.per_sample == first + deep
    assert unit.backward.convolution.per_sample == first + 2 * deep
    plane = 16 * 32 * 32 * 4
    assert unit.forward.batch_norm.per_sample == pytest.approx(2 * plane, rel=0.01)
    # the image, and the outputs of first and relu; deep's output stands for its mean only
    assert unit.kept.per_sample == pytest.approx(3 * 32 * 32 * 4 + 2 * plane, rel=0.01)


class TwoStacks(nn.Module):  # type: ignore[misc,name-defined]
    """An encoder whose result all blocks of a decoder read."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(HIDDEN, HEADS, 512, batch_first=True) for _ in range(2))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(HIDDEN, HEADS, 512, batch_first=True) for _ in range(2))
        self.head = nn.Linear(HIDDEN, WORDS, bias=False)

    def forward(self, ids: Any) -> Any:
        memory = x = self.words(ids)
        for block in self.encoder:
            memory = block(memory)
        for block in self.decoder:
            x = block(x, memory)
        return self.head(x)


def test_the_backward_pass_of_two_stacks_goes_back_through_both() -> None:
    profile = traced(TwoStacks)
    blocks = [(unit.name, unit.count) for unit in profile.units if unit.kind == "block"]
    assert blocks == [("encoder.0", 2), ("decoder.0", 2)]
    backward = [moment.name for moment in profile.moments if moment.name.startswith("backward of ")]
    order = [name.removeprefix("backward of ") for name in backward]
    assert [name for name in order if "behind" not in name] == [
        "decoder.1", "decoder.0", "encoder.1", "encoder.0", "before the blocks",
    ]  # fmt: skip
    for unit in profile.units:
        if unit.kind == "block":
            assert unit.backward.matmul.per_sample == pytest.approx(2 * unit.forward.matmul.per_sample)


def test_dropout_keeps_one_byte_an_element() -> None:
    class Dropping(Block):
        def forward(self, x: Any) -> Any:
            return F.dropout(super().forward(x), 0.1)

    def model() -> Any:
        made = Gpt()
        made.blocks = nn.ModuleList(Dropping() for _ in range(LAYERS))
        return made

    more = block_of(traced(model)).kept.per_sample - block_of(traced(Gpt)).kept.per_sample
    assert more == SEQ * HIDDEN


def test_fsdp_casts_parameters_and_inputs_of_blocks_but_no_buffers() -> None:
    seen: list[Any] = []

    class Watching(Block):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.zeros(4))
            self.register_forward_hook(lambda module, args, out: out.float())

        def forward(self, x: Any) -> Any:
            seen.append((x.dtype, self.norm1.weight.dtype, self.table.dtype))
            return super().forward(x)

    def model() -> Any:
        made = Gpt()
        made.blocks = nn.ModuleList(Watching() for _ in range(2))
        return made

    traced(model, "bf16-params")
    assert set(seen) == {(torch.bfloat16, torch.bfloat16, torch.float32)}

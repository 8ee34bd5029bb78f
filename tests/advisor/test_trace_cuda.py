"""What fake tensors of the CPU do under the dispatcher's choices for CUDA."""

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = pytest.mark.slow

BF16, FP32 = torch.bfloat16, torch.float32
CASTS_RMS_NORM = torch._C._dispatch_has_kernel_for_dispatch_key("aten::rms_norm", "AutocastCUDA")


@pytest.fixture
def calls() -> Iterator[list[str]]:
    """Run a test among fake tensors and CUDA's choices; name the kernels that it calls."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from advisor.trace.cuda import cuda_dispatch
    from advisor.trace.fake import fakes

    names: list[str] = []

    class Listening(TorchDispatchMode):  # type: ignore[misc,name-defined]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func._overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with fakes(), cuda_dispatch(), Listening():
        yield names


def half(*shape: int) -> Any:
    return torch.empty(shape, dtype=BF16, requires_grad=True)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.exp(),
        lambda x: x**2,
        lambda x: x.softmax(-1),
        lambda x: F.log_softmax(x, -1),
        lambda x: x.sum(),
        lambda x: F.layer_norm(x, (8,)),
        pytest.param(lambda x: F.rms_norm(x, (8,)), marks=pytest.mark.skipif(not CASTS_RMS_NORM, reason="torch 2.11")),
        lambda x: x.norm(),
        lambda x: F.mse_loss(x, torch.zeros(4, 8)),
        lambda x: F.interpolate(x[None], scale_factor=2),
    ],
    ids=["exp", "pow", "softmax", "log_softmax", "sum", "layer_norm", "rms_norm", "norm", "mse_loss", "interpolate"],
)
def test_autocast_gives_fp32_where_cuda_does(calls: list[str], call: Any) -> None:
    with torch.autocast("cpu", BF16):
        assert call(half(4, 8)).dtype == FP32


@pytest.mark.parametrize(
    "call",
    [
        F.gelu,
        lambda x: x.mean(),
        lambda x: F.avg_pool3d(x[None, None, None], 1),
        lambda x: F.pad(x, (1, 1), mode="reflect"),
        lambda x: torch.cat([x, x]),
    ],
    ids=["gelu", "mean", "avg_pool3d", "reflect", "cat"],
)
def test_autocast_leaves_16_bit_where_cuda_does(calls: list[str], call: Any) -> None:
    with torch.autocast("cpu", BF16):
        assert call(half(4, 8)).dtype == BF16


def test_autocast_adds_to_the_wider_dtype(calls: list[str]) -> None:
    with torch.autocast("cpu", BF16):
        index = torch.zeros(4, 8, dtype=torch.long)
        assert torch.zeros(4, 8).scatter_add(0, index, half(4, 8)).dtype == FP32


def test_softmax_of_16_bit_into_fp32_makes_no_copy_of_its_input(calls: list[str]) -> None:
    for softmax in (F.softmax, F.log_softmax):
        x = half(4, 8)
        out = softmax(x, -1, dtype=FP32)
        out.sum().backward()
        assert (out.dtype, x.grad.dtype) == (FP32, BF16)
    assert "_to_copy" not in calls


def attention(*, dtype: Any = BF16, kv: int = 4, size: int = 64, **options: Any) -> tuple[Any, Any]:
    query = torch.empty(2, 4, 16, size, dtype=dtype, requires_grad=True)
    key = torch.empty(2, kv, 16, size, dtype=dtype, requires_grad=True)
    return query, F.scaled_dot_product_attention(query, key, key, **options)


FLASH, EFFICIENT = "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"


@pytest.mark.parametrize(
    ("options", "kernel"),
    [
        ({"is_causal": True}, FLASH),
        ({"dropout_p": 0.1}, FLASH),
        ({"kv": 2, "enable_gqa": True}, FLASH),
        ({"size": 20}, FLASH),
        ({"dtype": FP32}, EFFICIENT),
        ({"attn_mask": "bool"}, EFFICIENT),
        ({"attn_mask": "float"}, EFFICIENT),
        ({"attn_mask": "learned"}, "softmax"),
        ({"attn_mask": "turned"}, "softmax"),
        ({"dtype": FP32, "kv": 2, "enable_gqa": True}, "softmax"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_attention_runs_the_kernel_that_cuda_would_choose(
    calls: list[str], options: dict[str, Any], kernel: str
) -> None:
    masks = {
        "bool": torch.empty(1, 1, 16, 16, dtype=torch.bool),
        "float": half(1, 1, 16, 16).detach(),
        "learned": half(1, 1, 16, 16),
        "turned": half(16, 16, 4).detach().permute(2, 0, 1)[None],  # whose rows are not dense
    }
    if "attn_mask" in options:
        options = options | {"attn_mask": masks[options["attn_mask"]]}
    query, out = attention(**options)
    assert out.shape == query.shape
    with torch.autograd.set_multithreading_enabled(False):
        out.sum().backward()
    assert any(kernel in name for name in calls) and any(kernel in name and "backward" in name for name in calls)
    assert query.grad.shape == query.shape


def test_attention_of_three_dimensions_runs_step_by_step(calls: list[str]) -> None:
    x = half(4, 16, 8)
    assert F.scaled_dot_product_attention(x, x, x).shape == x.shape
    assert "bmm" in calls


def test_multi_head_attention_runs_flash_attention_within(calls: list[str]) -> None:
    layer = torch.nn.MultiheadAttention(64, 4, batch_first=True, dtype=BF16)
    layer(*(half(2, 16, 64) for _ in range(3)), need_weights=False)
    assert FLASH in calls


def test_an_rms_norm_is_one_kernel_each_way(calls: list[str]) -> None:
    weight = half(8)
    F.rms_norm(half(4, 8), (8,), weight).sum().backward()
    assert weight.grad.shape == (8,)
    assert [name for name in calls if "rms_norm" in name] == ["rms_norm", "rms_norm_backward"]


def test_an_rms_norm_of_two_dtypes_runs_step_by_step(calls: list[str]) -> None:
    F.rms_norm(half(4, 8), (8,), torch.ones(8))
    assert "rms_norm" not in calls and "rsqrt" in calls


def test_the_old_choices_hold_again_afterwards() -> None:
    from advisor.trace.cuda import cuda_dispatch

    with cuda_dispatch():
        pass
    x = torch.ones(4, 8, dtype=BF16)
    with torch.autocast("cpu", BF16):
        assert x.exp().dtype == BF16
    assert torch.equal(F.dropout(x, 1.0), torch.zeros(4, 8, dtype=BF16))
    assert torch.nn.init.ones_(torch.empty(2)).tolist() == [1, 1]


def test_other_devices_mean_the_cpu(calls: list[str]) -> None:
    from torch import nn

    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).cuda().to("cuda:0", BF16)
    x = torch.empty(2, 3, device="cuda", dtype=BF16)
    assert model(x.to(torch.device("cuda"))).device.type == "cpu"
    assert {p.dtype for p in model.parameters()} == {BF16}


def test_rates_of_a_linspace_can_be_read(calls: list[str]) -> None:
    assert [rate.item() for rate in torch.linspace(0, 1, 3)] == [0, 0.5, 1]

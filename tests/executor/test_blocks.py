"""Which blocks of a model are recomputed in the backward pass."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed._composable.checkpoint_activation import checkpoint

from advisor.executor.in_process.blocks import recompute


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.inner(x))


class Model(nn.Module):
    """Two containers: five blocks and two."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(Block() for _ in range(5))
        self.last = nn.Sequential(Block(), Block())

    def forward(self, x: Any) -> Any:
        for block in self.first:
            x = block(x)
        return self.last(x)


@pytest.mark.parametrize(
    ("which", "names"),
    [
        ("selective", ["first.0", "first.2", "first.4", "last.0"]),
        ("full", ["first.0", "first.1", "first.2", "first.3", "first.4", "last.0", "last.1"]),
    ],
)
def test_selective_takes_every_second_block_of_each_container_and_gradients_stay(which: str, names: list[str]) -> None:
    model, x = Model(), torch.ones(2, 4)
    model(x).sum().backward()
    kept = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    for _ in range(2):  # a model may be wrapped again
        assert recompute(model, which) == len(names)
    chosen = [name for name, part in model.named_modules() if checkpoint.state(part) is not None]
    runs: list[str] = []
    for name, part in model.named_modules():
        if isinstance(part, Block):
            part.inner.register_forward_hook(lambda *_, name=name: runs.append(name))  # type: ignore[misc]
    assert chosen == names
    model(x).sum().backward()
    assert sorted(set(runs), key=runs.index) == [f"first.{n}" for n in range(5)] + ["last.0", "last.1"]
    assert sorted(name for name in set(runs) if runs.count(name) == 2) == names
    again = [parameter.grad for parameter in model.parameters()]
    for one, other in zip(kept, again, strict=True):
        torch.testing.assert_close(one, other)


def test_a_model_without_repeated_blocks_is_left_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    assert recompute(nn.Sequential(nn.Linear(2, 2), nn.Tanh()), "selective") == 0
    assert "no repeated blocks" in capfd.readouterr().err

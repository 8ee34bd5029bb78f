"""Ranks that train on the same batches are stopped."""

from typing import Any

import pytest
import torch

from advisor.executor.in_process.alike import data_ranks, mark


def test_batches_are_told_apart_and_one_of_equal_numbers_tells_nothing() -> None:
    one, other = torch.arange(6.0), torch.arange(6.0).flip(0) + 1
    assert mark((one,), {}) == mark((), {"x": one}) != mark((other,), {})
    assert mark((torch.zeros(3), {"y": torch.ones(2)}), {}) is None


def test_a_model_of_which_nothing_is_known_is_not_looked_at() -> None:
    assert data_ranks(torch.nn.Linear(2, 2)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_ranks_with_the_same_batches_are_stopped_with_the_lines_to_change(scripts: Any, how: str) -> None:
    result = scripts.applied("same_batches.py", how, plan=scripts.plan(ranks=2))
    assert (result.exit_code, result.out) == (1, "")
    said = result.err + scripts.log("1.err")  # once one has stopped, the other may miss it in a collective
    assert "ranks 0, 1 have trained on the same 3 batches" in said
    assert "DistributedSampler(dataset)" in said

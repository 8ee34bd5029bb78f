"""Gradients of a plain script's ranks: those of the whole batch, whatever a pass reaches; sent while it still runs."""

import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch

from advisor.executor.forked import free_port
from advisor.executor.in_process.plain_buckets import ALIGNED, buckets

CASES = Path(__file__).with_name("adds_up.py")
SECONDS = 120  # far more than it takes


def made(parameters: list[torch.Tensor], size: int) -> list[list[int]]:
    members = [(number, weakref.ref(one)) for number, one in enumerate(parameters)]
    return [bucket.numbers for bucket in buckets(members, size)]


def test_buckets_follow_the_order_given_and_hold_one_dtype_each() -> None:
    half = torch.zeros(8, dtype=torch.float16)
    parameters = [torch.zeros(8), torch.zeros(8), half, torch.zeros(40), torch.zeros(4)]
    assert made(parameters, 64) == [[0, 1], [3], [2], [4]]
    assert made(parameters, 10**6) == [[0, 1, 3, 4], [2]]


def test_packed_gradients_are_views_that_begin_at_aligned_places() -> None:
    parameters = [torch.nn.Parameter(torch.ones(size)) for size in (3, 5, 2)]
    for one in parameters[:2]:
        one.grad = torch.ones_like(one)
    (bucket,) = buckets([(number, weakref.ref(one)) for number, one in enumerate(parameters)], 10**6)
    flat, views = bucket.pack()
    flat *= 2
    assert [one.grad is None or one.grad.sum().item() for one in parameters] == [6, 10, True]
    assert views[2].sum() == 0
    assert all(view.data_ptr() % (4 * ALIGNED) == flat.data_ptr() % (4 * ALIGNED) for view in views)


@pytest.mark.slow
def test_two_ranks_have_the_gradients_of_the_whole_batch() -> None:
    command = [sys.executable, str(CASES), str(free_port())]
    result = subprocess.run(command, capture_output=True, timeout=SECONDS, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("equal") == 22, result.stdout

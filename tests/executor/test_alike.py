"""Ranks that train on the same batches are stopped."""

from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_ranks_with_the_same_batches_are_stopped_with_the_lines_to_change(scripts: Any) -> None:
    result = scripts.applied("same_batches.py", plan=scripts.plan(ranks=2))
    assert (result.exit_code, result.out) == (1, "")
    assert "ranks 0, 1 have trained on the same 3 batches" in result.err
    assert "DistributedSampler(dataset)" in result.err
    assert "same 3 batches" in scripts.log("1.err")

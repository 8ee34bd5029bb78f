"""Weights that drift apart between ranks stop the run; what may differ does not."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from advisor.executor.in_process import drift

HARMLESS = ("buffers", "zero", "teacher", "accumulates", "looks", "hybrid")


def apart(mine: Sequence[Any], theirs: Sequence[Any]) -> list[int]:
    """Compare two ranks' tensors: what the other one would say is worked out beside."""
    answers = [drift.fingerprints(theirs)]
    pairs = zip(drift.fingerprints(mine), answers[0], strict=True)
    suspects = [i for i, (one, other) in enumerate(pairs) if one != other and theirs[i] is not None]
    if suspects:
        answers.append(torch.cat([drift.sample(theirs[i], drift.SAMPLED) for i in suspects]).tolist())

    def gather(numbers: list[float]) -> list[list[float]]:
        return [numbers, answers.pop(0)]

    return drift.apart(mine, gather)


def test_tensors_that_differ_are_found_and_rounding_is_not() -> None:
    one = [torch.randn(50, 30), torch.arange(6), torch.tensor(2.0, dtype=torch.bfloat16)]
    one.append(torch.randn(4, 1).expand(4, 3))
    assert apart(one, [other.clone() for other in one]) == []
    rounded = [one[0] * (1 + 1e-6), *one[1:]]
    assert apart(one, rounded) == []
    assert apart(one, [one[0] * 1.01, one[1], one[2] + 1, one[3]]) == [0, 2]


def test_a_tensor_that_one_rank_has_not_is_not_compared() -> None:
    assert apart([torch.ones(3), torch.ones(2)], [None, torch.ones(2)]) == []


def test_numbers_that_are_no_numbers_make_no_difference() -> None:
    assert drift.difference([1.0, float("nan")], [1.0, 2.0]) == 0.0
    assert drift.difference([0.0], [1.0]) == float("inf")


@pytest.mark.slow
def test_weights_that_drift_apart_stop_the_run(scripts: Any) -> None:
    result = scripts.applied("drifts.py", *HARMLESS, "loaded", plan=scripts.plan(ranks=2))
    assert result.out == "".join(f"trained {how}\n" for how in HARMLESS)
    assert result.exit_code == 1
    assert "0.weight of Sequential on rank 1 is not what it is on rank 0" in scripts.log("1.err")
    assert "loaded or changed on one rank alone" in result.err

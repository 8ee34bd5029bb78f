"""A checkpoint loads under another strategy and another number of ranks, and training goes on as if never stopped."""

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

AT, LAST = 7, 12  # 5 steps an epoch: saved in the middle of the second


@pytest.mark.parametrize(
    ("written", "options", "read"),
    [
        (("ddp", 2), (), (("fsdp", 4),)),
        (("fsdp", 4), ("asynchronous",), (("compiled", 2), ("plain", 1))),
    ],
    ids=["ddp", "fsdp"],
)
def test_training_goes_on_as_if_never_stopped(
    programs: Any, tmp_path: Path, written: tuple[str, int], options: tuple[str, ...], read: Any
) -> None:
    strategy, ranks = written
    out, err, code = programs.run(ranks, "train_and_save.py", tmp_path, strategy, 0, LAST, AT, *options)
    assert (code, err) == (0, "")
    losses = json.loads(out)
    for strategy, now in read:
        out, err, code = programs.run(now, "train_and_save.py", tmp_path, strategy, AT, LAST, 0)
        assert code == 0, err
        assert json.loads(out) == pytest.approx(losses[AT:], abs=1e-6)
        assert ("advisor: " in err) == (now > ranks), err
        if now > ranks:
            new = f"ranks {ranks}-{now - 1}" if now - ranks > 1 else f"rank {ranks}"
            assert f"the random states of {new} are derived from rank 0's" in err

"""What goes wrong on one rank is told on all of them, and nothing hangs."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_errors_of_one_rank_are_told_on_all_and_the_next_save_works(programs: Any, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    out, err, code = programs.run(2, "errs_on_ranks.py", folder)
    assert (code, out, err) == (0, "", "")
    missing, *first = (folder / "rank-0.txt").read_text().splitlines()
    second = (folder / "rank-1.txt").read_text().splitlines()
    assert "can't save step 2 in " in missing
    assert "rank 1 of 2 did not come within 1 s: every rank must call it, not rank 0 alone" in missing
    assert first == second
    at_once, later, end = first
    for told in (at_once, later):
        assert "can't save step 3 in " in told
        assert " on rank 1: no space: it needs " in told
        assert "the last one, of step 1, is untouched" in told
    assert end == "['000001-step-1'] 4 4.0"


def test_ranks_without_a_process_group_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch import nn

    from advisor import checkpoint

    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(checkpoint.CheckpointError, match=r"call torch\.distributed\.init_process_group before"):
        checkpoint.save(tmp_path, 1, model=nn.Linear(2, 2))

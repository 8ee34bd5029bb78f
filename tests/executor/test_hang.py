"""What is said of ranks that wait for one another."""

from typing import Any

import pytest

from advisor.executor.frames import Frame
from advisor.executor.hang import GroupState, Pending, Picture, hang_of, mismatch, missing, signature, waiting

BACKWARD = Frame(file="/home/u/train.py", line=20, name="main", text="loss.backward()")
LOADER = Frame(file="/x/site-packages/torch/utils/data/dataloader.py", line=1, name="_get_data")
INIT = Frame(file="/x/site-packages/torch/distributed/distributed_c10d.py", line=1, name="init_process_group")


def picture(rank: int, entered: dict[int, str], pending: int | None, **fields: Any) -> Picture:
    group = GroupState(
        description="default_pg",
        collectives=entered,
        pending=None if pending is None else Pending(number=pending, since=1.0),
    )
    return Picture(**{"rank": rank, "pid": 100 + rank, "stack": (BACKWARD,), "groups": {"0": group}} | fields)


def test_rank_that_has_not_entered_the_collective_is_missing() -> None:
    there = [picture(rank, {7: "all_reduce f[1]", 8: "all_reduce f[2]"}, 8) for rank in (0, 2)]
    absent = picture(1, {7: "all_reduce f[1]"}, None, stack=(LOADER, BACKWARD), works=False)
    hang = hang_of([there[0], absent, there[1]], 60.4)
    assert hang.what == "no progress for 60 s: ranks 0, 2 wait in all_reduce f[2]; rank 1 does not come"
    assert (hang.waiting, hang.missing) == ((0, 2), (1,))
    assert hang.ranks[1] == (
        "rank 1 (pid 101) is missing: idle, in its data loader, /home/u/train.py:20 in main: loss.backward()"
    )


def test_all_are_there_and_it_does_not_end() -> None:
    hang = hang_of([picture(rank, {8: "all_reduce f[2]"}, 8) for rank in (0, 1)], 60)
    assert hang.what == "no progress for 60 s: all ranks are in all_reduce f[2], and it does not end"
    assert hang.missing == ()


def test_different_collectives_in_one_place_are_told() -> None:
    pictures = [picture(0, {8: "all_reduce f[2]"}, 8), picture(1, {8: "broadcast f[2]"}, 8)]
    assert mismatch(pictures) == "rank 0 called all_reduce f[2], rank 1 called broadcast f[2]"
    assert "different collectives" in hang_of(pictures, 60).what


def test_rank_that_has_ended_is_missing_too() -> None:
    pictures = [picture(0, {8: "all_reduce f[2]"}, 8), Picture(rank=1, pid=101, exit_code=0)]
    hang = hang_of(pictures, 60)
    assert "is missing: has ended with exit code 0" in hang.ranks[1]
    assert "same number of steps" in hang.todo[0]


def test_ranks_outside_a_group_are_not_missing_in_it() -> None:
    group = GroupState(ranks=(0, 1), collectives={3: "all_reduce f[1]"}, pending=Pending(number=3, since=1.0))
    pictures = [
        Picture(rank=0, pid=1, stack=(BACKWARD,), groups={"5": group}),
        Picture(rank=1, pid=2, stack=(BACKWARD,)),
        Picture(rank=2, pid=3, stack=(BACKWARD,)),
    ]
    assert [late.rank for late in missing(pictures)] == [1]


def test_start_of_the_process_group_is_a_wait_as_well() -> None:
    pictures = [Picture(rank=0, pid=1, stack=(INIT, BACKWARD)), Picture(rank=1, pid=2, stack=(BACKWARD,))]
    assert [there.waits for there in waiting(pictures)] == ["init_process_group"]
    assert [late.rank for late in missing(pictures)] == [1]


@pytest.mark.parametrize(
    "after",
    [
        pytest.param([picture(0, {8: "a"}, 8), picture(1, {8: "a"}, 8)], id="another rank enters"),
        pytest.param([picture(0, {8: "a"}, None), picture(1, {7: "a"}, None)], id="it ends"),
        pytest.param([picture(0, {8: "a"}, 8), Picture(rank=1, pid=1, exit_code=0)], id="a rank ends"),
    ],
)
def test_progress_changes_the_signature(after: list[Picture]) -> None:
    before = [picture(0, {8: "a"}, 8), picture(1, {7: "a"}, None)]
    assert signature(before) == signature([picture(0, {8: "a"}, 8), picture(1, {7: "a"}, None, works=True)])
    assert signature(after) != signature(before)


def test_nobody_waits_while_all_compute_or_compile() -> None:
    compiling = Frame(file="/x/site-packages/torch/_inductor/graph.py", line=1, name="run")
    pictures = [picture(rank, {8: "a"}, None, stack=(compiling, BACKWARD)) for rank in (0, 1)]
    assert waiting(pictures) == []
    assert pictures[0].doing == "compiling"

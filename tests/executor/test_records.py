"""What the ranks wrote, read back and summed up."""

from pathlib import Path
from typing import Any

import pytest

from advisor.executor.exit_status import script_exit
from advisor.executor.process import Ended
from advisor.executor.records import Ddp, Memory, RankRecord, read_ranks
from advisor.executor.report import Change, changes, compare, rank_run, unknowns
from advisor.rules import plan as plans

LINES = """{"kind": "start", "rank": 1, "pid": 7, "time": 1.0}
{"kind": "steps", "first": 1, "wall": [9.0, 9.0], "device": [null, null]}
{"kind": "memory", "peak_rss": 10}
{"kind": "steps", "first": 3, "wall": [1.0, 2.0], "device": [null, null]}
{"kind": "memory", "peak_rss": 20}
"""


def test_records_of_a_killed_rank_are_read_up_to_the_last_whole_line(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text(LINES + '{"kind": "steps", "first": 5, "wa')
    (tmp_path / "0.jsonl").write_text("")
    dead, cut = read_ranks(tmp_path)
    assert dead == RankRecord(rank=0, pid=0)
    assert cut.steps == ((9.0, None), (9.0, None), (1.0, None), (2.0, None))
    assert cut.memory == Memory(peak_rss=20)
    assert cut.exit_code is None


def test_warm_up_is_left_out_of_the_step_time() -> None:
    record = RankRecord(rank=0, pid=1, steps=tuple((seconds, None) for seconds in (9.0, 9.0, 1.0, 2.0, 3.0)))
    run = rank_run(record)
    assert run.steps == 6  # the first has no measured start
    assert run.step is not None
    assert (run.step.steps, run.step.median, run.clock) == (3, 2.0, "wall")


def test_device_time_counts_where_there_is_any() -> None:
    record = RankRecord(rank=0, pid=1, steps=((9.0, 9.0), (9.0, 9.0), (0.1, 1.0), (0.1, 1.5), (3.0, None)))
    run = rank_run(record)
    assert run.step is not None
    assert (run.step.median, run.clock) == (1.25, "device")


def test_too_few_steps_are_told() -> None:
    record = RankRecord(rank=0, pid=1, steps=((9.0, None),))
    assert rank_run(record).step is None
    assert [unknown.why for unknown in unknowns([rank_run(record)], [record])] == [
        "the script made 2 optimizer steps; the first 3 are warm-up",
        "the script built no DistributedDataParallel",
    ]


def test_error_of_the_prediction_is_signed_and_by_the_worst_rank() -> None:
    memory = plans.Memory(
        total=90,
        available=100,
        parameters=0,
        gradients=0,
        optimizer=0,
        activations=0,
        logits=0,
        communication=0,
        context=10,
    )
    predicted = plans.Predicted(
        step_seconds=1.5,
        step_seconds_range=(1, 2),
        compute_seconds=1,
        communication_seconds=1,
        exposed_communication_seconds=0.5,
        samples_per_second=1,
        tokens_per_second=1,
        memory=memory,
        source="measured",
    )
    steps = ((1.0, None),) * 4
    ranks = [
        rank_run(
            RankRecord(rank=r, pid=1, steps=steps, memory=Memory(peak_rss=1, peak_allocated=40 * r, device_used=100))
        )
        for r in (1, 2)
    ]
    errors = compare(predicted, ranks[0].step, ranks)
    assert (errors.step_pct, errors.device_memory_pct, errors.allocated_memory_pct) == (50.0, -10.0, 0.0)


def test_same_change_on_all_ranks_is_listed_once(scripts: Any) -> None:
    ddp = Ddp(given={"bucket_cap_mb": 50.0}, overridden={"bucket_cap_mb": 25}, kept={"static_graph": False})
    records = [RankRecord(rank=rank, pid=1, ddp=(ddp,)) for rank in (0, 1)]
    assert changes(scripts.plan(bucket_cap_mb=50.0, static_graph=True), records) == (
        Change(argument="bucket_cap_mb", script=25, plan=50.0, used="plan"),
        Change(argument="static_graph", script=False, plan=True, used="script"),
    )


BANNER = """Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 1) (SIGTERM)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-02_03:04:05
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : {} (pid: 2)
"""


@pytest.mark.parametrize(
    ("torchrun", "signal", "log", "codes", "expected"),
    [
        pytest.param(0, None, "", [0, 0], (0, None), id="fine"),
        pytest.param(1, None, BANNER.format(7), [None, None], (7, 1), id="os._exit"),
        pytest.param(1, None, BANNER.format("-9 "), [None, None], (137, 1), id="killed"),
        pytest.param(1, 2, "", [130, 130], (130, 0), id="Ctrl-C"),
        pytest.param(1, 15, "", [None, 0], (143, 0), id="SIGTERM"),
        pytest.param(1, 15, "", [0, 5], (5, 1), id="SIGTERM, handled"),
        pytest.param(1, 15, "", [0, 0], (0, None), id="SIGTERM, handled well"),
        pytest.param(-2, 2, "", [], (130, None), id="Ctrl-C before any rank"),
        pytest.param(-9, None, "", [None], (137, 0), id="torchrun killed"),
    ],
)
def test_exit_code_is_that_of_the_rank_that_failed_first(
    torchrun: int, signal: int | None, log: str, codes: list[int | None], expected: tuple[int, int | None]
) -> None:
    ranks = [RankRecord(rank=rank, pid=1, exit_code=code) for rank, code in enumerate(codes)]
    assert script_exit(Ended(torchrun=torchrun, signal=signal), log, ranks) == expected

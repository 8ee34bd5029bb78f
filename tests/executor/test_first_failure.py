"""Which rank failed first, and what is advised."""

from typing import Any

import pytest

from advisor.executor.advice import advise
from advisor.executor.first_failure import first_failure
from advisor.executor.records import Failed, RankRecord
from advisor.rules.plan import Memory, Predicted

BLOCK = """[{n}]:
  time      : 2026-01-02_03:04:{second:02}
  host      : localhost
  rank      : {rank} (local_rank: {rank})
  exitcode  : {status} (pid: {pid})
"""
NOON = 1767323045.0  # 2026-01-02 03:04:05 UTC


def log(*failures: tuple[int, int, int]) -> str:
    """Write torchrun's summary of (rank, status, second); the last is its root cause."""
    blocks = [BLOCK.format(n=n, rank=r, status=s, second=t, pid=100 + r) for n, (r, s, t) in enumerate(failures)]
    return "Failures:\n" + "".join(blocks[:-1]) + "----\nRoot Cause (first observed failure):\n" + blocks[-1]


def record(rank: int, error: str | None = None, time: float = NOON) -> RankRecord:
    failed = None if error is None else Failed(time=time, error=error)
    return RankRecord(rank=rank, pid=100 + rank, failed=failed)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_rank_that_lost_its_peer_is_not_the_cause() -> None:
    ranks = [record(0, "RuntimeError: Connection closed by peer", NOON), record(1, "ValueError: x", NOON + 0.5)]
    found = first_failure(log((1, 1, 5), (0, 1, 5)), ranks)  # torchrun takes rank 0
    assert found is not None
    assert (found.rank, found.status, found.pid) == (1, 1, 101)


def test_killed_rank_comes_before_exceptions_of_the_others() -> None:
    found = first_failure(log((1, -9, 6), (0, 1, 5)), [record(0, "RuntimeError: something new"), record(1)])
    assert found is not None
    assert (found.rank, found.status) == (1, -9)


def test_kill_long_after_an_exception_is_torchruns_own() -> None:
    found = first_failure(log((0, -9, 36), (1, 1, 5)), [record(0), record(1, "ValueError: x")])
    assert found is not None
    assert found.rank == 1


def test_earlier_of_two_exceptions_counts() -> None:
    ranks = [record(0, "ValueError: x", NOON + 0.4), record(1, "ValueError: y", NOON + 0.1)]
    found = first_failure(log((1, 1, 5), (0, 1, 5)), ranks)
    assert found is not None
    assert found.rank == 1


def test_rank_that_torchrun_stopped_on_its_way_out_ended_by_its_exception() -> None:
    ranks = [record(0, "ValueError: x", NOON), record(1, "RuntimeError: Connection closed by peer", NOON + 1)]
    found = first_failure(log((0, -15, 6), (1, 1, 5)), ranks)
    assert found is not None
    assert (found.rank, found.status) == (0, 1)


def test_no_summary_names_nobody() -> None:
    assert first_failure("Signal 2 (SIGINT) received", [record(0)]) is None


def test_out_of_memory_is_answered_with_the_prediction(scripts: Any) -> None:
    parts = dict.fromkeys(("parameters", "gradients", "optimizer", "activations", "logits", "communication"), 0)
    predicted = Predicted(
        step_seconds=1,
        step_seconds_range=(1, 1),
        compute_seconds=1,
        communication_seconds=0,
        exposed_communication_seconds=0,
        samples_per_second=1,
        tokens_per_second=1,
        memory=Memory(total=int(20e9), available=int(22e9), context=0, **parts),
        source="data sheet",
    )
    lines = advise("torch.OutOfMemoryError: CUDA out of memory.", 1, scripts.plan(ranks=2), predicted)
    assert lines[0] == "the plan predicts 20 GB of 22 GB per rank"


@pytest.mark.parametrize(
    ("said", "status", "words"),
    [
        ("RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: Success (0)", 1, "--shm-size"),
        ("ERROR: Unexpected bus error encountered in worker. insufficient shared memory (shm)", 1, "--shm-size"),
        (
            "Error while creating shared memory segment /dev/shm/nccl-Xy (size 9637888), error: No space",
            1,
            "--shm-size",
        ),
        ("OSError: [Errno 28] No space left on device", 1, "df -h"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", 1, "dmesg"),
        ("", -9, "dmesg"),
        ("", -7, "/dev/shm"),
        ("", -11, "PYTHONFAULTHANDLER"),
    ],
)
def test_known_failures_have_something_to_type(scripts: Any, said: str, status: int, words: str) -> None:
    assert any(words in line for line in advise(said, status, scripts.plan(), None))


def test_an_error_of_the_script_alone_is_left_to_its_traceback(scripts: Any) -> None:
    assert advise("ValueError: bad sample", 1, scripts.plan(), None) == ()

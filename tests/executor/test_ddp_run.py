"""A real run on two CPU processes with gloo: what DDP receives and what is measured."""

from typing import Any

import pytest

from advisor.executor.report import Change

pytestmark = pytest.mark.slow


def test_ddp_receives_the_plan_and_the_run_is_measured(scripts: Any) -> None:
    plan = scripts.plan(ranks=2, bucket_cap_mb=1.0, gradient_as_bucket_view=True, static_graph=True)
    result = scripts.applied("trains_ddp.py", plan=plan)
    # Four layers of 1 MiB: one bucket under the script's own cap of 100, four under the plan's of 1.
    assert result.out == "buckets 4 views True static False\n"
    assert (result.err, result.exit_code) == ("", 0)
    report = scripts.report()
    assert report.plan == plan
    assert report.changes == (
        Change(argument="bucket_cap_mb", script=100, plan=1.0, used="plan"),
        Change(argument="gradient_as_bucket_view", script=None, plan=True, used="plan"),
        Change(argument="static_graph", script=False, plan=True, used="script"),
    )
    assert [(rank.rank, rank.steps, rank.exit_code) for rank in report.ranks] == [(0, 12, 0), (1, 12, 0)]
    assert all(rank.step is not None and rank.step.steps == 9 and rank.step.median > 0 for rank in report.ranks)
    assert report.step in [rank.step for rank in report.ranks]
    # torch alone needs more than 100 MB; torchrun's own peak, had it been inherited, would be there too.
    assert all(rank.peak_rss > 100e6 and rank.peak_allocated is None for rank in report.ranks)


def test_an_error_inside_ddp_shows_no_frame_of_ours(scripts: Any) -> None:
    result = scripts.applied("builds_ddp_badly.py", plan=scripts.plan(bucket_cap_mb=1.0))
    assert result.exit_code == 1
    assert "doesn't have any parameter that requires a gradient" in result.err
    assert "in_process" not in result.err
    assert "builds_ddp_badly.py" in result.err


def test_the_example_learns_writes_checkpoints_and_resumes(scripts: Any, tmp_path: Any) -> None:
    example = str(scripts.example)
    plan = scripts.plan(ranks=2)
    checkpoint = tmp_path / "gpt.pt"
    result = scripts.applied(example, "--steps", "30", "--eval-every", "15", "--out", str(checkpoint), plan=plan)
    first, last = (line.split() for line in result.out.splitlines())
    assert float(last[3].rstrip(",")) < float(first[3].rstrip(",")) < 4.2  # a guess among 61 characters costs 4.1
    assert [path.name for path in tmp_path.iterdir() if path.suffix in (".pt", ".tmp")] == ["gpt.pt"]
    resumed = scripts.alone(example, "--steps", "31", "--out", str(checkpoint))
    assert resumed.out.startswith("step 31: loss")

"""What `advisor apply` says at the end of a run."""

import shlex
from typing import Any

import pytest
from msgspec.structs import replace
from syrupy.assertion import SnapshotAssertion

from advisor.executor.launch import Launch
from advisor.executor.report import Change, Errors, RankRun, Run, StepTime
from advisor.report.console import render
from advisor.report.run import launch_report, run_report, run_verdict
from advisor.rules.machine import Unknown
from advisor.rules.plan import Launcher, Memory, Plan, Predicted

GB = 10**9
PLAN = Plan(
    gpus=("GPU0", "GPU1", "GPU2", "GPU3"),
    strategy="ddp",
    micro_batch=8,
    accumulation=1,
    global_batch=32,
    precision="bf16-autocast",
    bucket_cap_mb=50.0,
    launcher=Launcher(nproc_per_node=4),
)
PREDICTED = Predicted(
    step_seconds=0.278,
    step_seconds_range=(0.26, 0.31),
    compute_seconds=0.24,
    communication_seconds=0.1,
    exposed_communication_seconds=0.02,
    samples_per_second=115.0,
    tokens_per_second=117_800.0,
    memory=Memory(
        total=18_200_000_000,
        available=23 * GB,
        parameters=GB,
        gradients=GB,
        optimizer=2 * GB,
        activations=12 * GB,
        logits=GB,
        communication=700_000_000,
        context=500_000_000,
    ),
    source="data sheet",
)


def rank(number: int, **changes: Any) -> RankRun:
    usual = RankRun(
        rank=number,
        steps=100,
        step=StepTime(median=0.291, low=0.288, high=0.302, steps=97),
        clock="device",
        peak_rss=3_100_000_000,
        peak_allocated=17_100_000_000,
        peak_reserved=18_400_000_000,
        device_used=19 * GB,
        exit_code=0,
    )
    return replace(usual, **changes)


def finished(**changes: Any) -> Run:
    slow = StepTime(median=0.296, low=0.288, high=0.31, steps=97)
    run = Run(
        script="train_gpt.py",
        arguments=("--steps", "100"),
        folder="advisor-runs/20260102-030405-train_gpt",
        started="2026-01-02T03:04:05+00:00",
        seconds=48.2,
        exit_code=0,
        plan=PLAN,
        predicted=PREDICTED,
        step=slow,
        errors=Errors(step_pct=-6.1, device_memory_pct=-4.2, allocated_memory_pct=3.5),
        ranks=(rank(0), rank(1), rank(2, step=slow), rank(3)),
        changes=(
            Change(argument="bucket_cap_mb", script=25, plan=50.0, used="plan"),
            Change(argument="static_graph", script=True, plan=False, used="script"),
        ),
    )
    return replace(run, **changes)


def failed() -> Run:
    return finished(
        exit_code=3,
        seconds=6.5,
        failed_rank=2,
        failure="ValueError: vocabulary too small",
        predicted=None,
        step=None,
        errors=Errors(),
        ranks=tuple(
            RankRun(rank=number, steps=0, exit_code=3 if number == 2 else None, peak_rss=400_000_000)
            for number in range(4)
        ),
        changes=(),
        unknown=(Unknown(what="step time", why="the script made fewer than two steps of a torch.optim optimizer"),),
    )


def report(run: Run, width: int = 100) -> str:
    return render(run_report(run), width=width, colour=False)


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("made", [finished, failed])
def test_a_run_is_summed_up(made: Any, width: int, page: SnapshotAssertion) -> None:
    assert report(made(), width) == page


def test_equal_ranks_share_a_row() -> None:
    assert "  0-1,3    100" in report(finished())


def test_of_many_unequal_ranks_the_slowest_are_shown() -> None:
    ranks = tuple(
        rank(number, step=StepTime(median=0.2 + number / 1000, low=0.2, high=0.4, steps=9)) for number in range(64)
    )
    text = report(finished(ranks=ranks))
    shown = [line.split()[0] for line in text.splitlines() if " 100 " in line]
    assert shown == [str(number) for number in range(63, 47, -1)]
    assert "and 48 faster ranks: report.json has all" in text


def test_without_a_prediction_only_the_measurement_is_shown() -> None:
    text = report(finished(predicted=None, errors=Errors()))
    header = text[text.index("Predicted against measured") :].splitlines()[1]
    assert header.split() == ["measured"]


def test_the_verdict_of_a_failed_run_gives_the_exit_code() -> None:
    verdict = render(run_verdict(failed()), width=60, colour=False)
    assert verdict.startswith("Failed: exit code 3; train_gpt.py")
    assert verdict.count("\n") == 1


def test_a_dry_run_shows_a_command_that_a_shell_can_run() -> None:
    words = [
        "python",
        "-c",
        "import sys; print(sys.argv[1:])",
        *(f"--option-{number}=it's a 'value'" for number in range(9)),
    ]
    launch = Launch(argv=tuple(words), environment={"NAME": "a b"})
    text = render(launch_report(launch), width=60, colour=False)
    assert shlex.split(text.replace("\\\n", "")) == ["env", "NAME=a b", *words]

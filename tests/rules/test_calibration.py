"""What was measured replaces data sheets, and predictions follow it."""

from collections.abc import Callable

import pytest

from advisor.rules.calibration import Calibration, Floor, MeasuredGroup, measured_collective
from advisor.rules.cost import Costs
from advisor.rules.fabric import collective_seconds
from advisor.rules.job import Job
from advisor.rules.machine import Machine
from advisor.rules.plan import Plan

Jobs = Callable[..., Job]


def plan(gpus: int, strategy: str) -> Plan:
    return Plan(
        gpus=tuple(f"GPU{i}" for i in range(gpus)),
        strategy=strategy,  # type: ignore[arg-type]
        micro_batch=4,
        global_batch=4 * gpus,
        precision="bf16-autocast",
    )


def test_a_measured_collective_gives_back_what_was_measured() -> None:
    points = [(1e6, 1e-4), (64e6, 3e-3), (1e9, 4e-2)]
    found = measured_collective("all_reduce", 8, points)
    assert found.source == "measured"
    for size, seconds in points:
        assert collective_seconds(found, "all_reduce", size, 8) == pytest.approx(seconds)


def test_a_step_without_communication_is_predicted_as_it_was_measured(nvswitch_server: Machine, job: Jobs) -> None:
    given, alone = job(1.3e9), plan(1, "single")
    costs = Costs(given, nvswitch_server)
    measured = 2 * costs.predict(alone, costs.memory(alone)).step_seconds
    calibrated = Costs(given, nvswitch_server, Calibration(floors=(Floor(micro_batch=4, seconds=measured),)))
    found = calibrated.predict(alone, calibrated.memory(alone))
    assert found.step_seconds == pytest.approx(measured)
    assert found.source == "measured"


def test_measured_collectives_are_taken_for_the_whole_group(nvswitch_server: Machine, job: Jobs) -> None:
    slow = {op: measured_collective(op, 8, [(1e6, 1e-2), (1e9, 1.0)]) for op in ("all_reduce", "all_gather")}
    slow["reduce_scatter"] = slow["all_gather"]
    given, tried = job(1.3e9), plan(8, "ddp")
    modelled = Costs(given, nvswitch_server)
    group = MeasuredGroup(gpus=tried.gpus, collectives=slow)  # type: ignore[arg-type]
    measured = Costs(given, nvswitch_server, Calibration(groups=(group,)))
    memory = modelled.memory(tried)
    assert measured.predict(tried, memory).step_seconds > 2 * modelled.predict(tried, memory).step_seconds

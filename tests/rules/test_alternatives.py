"""What rules compare a plan with."""

import pytest

from advisor.probe.load import load_machine
from advisor.rules.alternatives import changed, exposed_share, fastest, rivals, smallest
from advisor.rules.catalog.par125_failures_expected import GPU_HOURS_PER_FAILURE, interval_seconds
from advisor.rules.job import Job, assume_architecture
from advisor.rules.recommend import recommend
from advisor.rules.rule import Case

ARCHITECTURE, SEQ = assume_architecture(350e6)
PARAMS = 350_000_000
JOB = Job(params=PARAMS, trainable_params=PARAMS, architecture=ARCHITECTURE, seq=SEQ, global_batch=256, micro_batch=4)
MACHINE = load_machine("4x 4090 pcie3x4")
FOUND = recommend(JOB, MACHINE)
CASE = Case(machine=MACHINE, job=JOB, plan=FOUND.plan, predicted=FOUND.predicted, candidates=FOUND.candidates)


def test_rivals_have_as_many_ranks_as_the_plan() -> None:
    assert FOUND.plan is not None
    found = rivals(CASE, "fsdp")
    assert {(c.plan.strategy, c.plan.ranks) for c in found} == {("fsdp", FOUND.plan.ranks)}
    assert rivals(Case(machine=MACHINE), "fsdp") == []


def test_the_fastest_fits_and_the_smallest_needs_least() -> None:
    best, least = fastest(FOUND.candidates), smallest(FOUND.candidates)
    assert best is not None
    assert least is not None
    assert best.predicted.memory.fits
    assert all(c.predicted.memory.total >= least.predicted.memory.total for c in FOUND.candidates)
    assert fastest([]) is None
    assert smallest([]) is None


def test_a_plan_with_nothing_changed_costs_what_was_predicted() -> None:
    assert changed(CASE) == FOUND.predicted


def test_what_can_not_be_priced_is_none() -> None:
    assert changed(Case(machine=MACHINE)) is None
    assert changed(CASE, precision=None) is None


def test_share_of_a_step_that_waits() -> None:
    assert FOUND.predicted is not None
    assert 0 < exposed_share(FOUND.predicted) < 1


def test_interval_between_checkpoints() -> None:
    assert interval_seconds(42, 2.85e6) == pytest.approx(15_473, rel=1e-3)
    assert pytest.approx(50_678, rel=1e-3) == GPU_HOURS_PER_FAILURE

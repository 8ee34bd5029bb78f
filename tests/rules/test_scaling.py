"""How far more GPUs help, and what another global batch asks of the learning rate."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.rules.errors import AdvisorError
from advisor.rules.job import Job
from advisor.rules.machine import Machine, Price
from advisor.rules.plan import Scale
from advisor.rules.recommend import recommend
from advisor.rules.scaling import dollars, enough, learning_rate

Machines = Callable[..., Machine]
Jobs = Callable[..., Job]


def scale(gpus: int, rate: float) -> Scale:
    return Scale(gpus=gpus, nodes=1, strategy="ddp", step_seconds=1, samples_per_second=rate, efficiency=1, gain=None)


def test_each_size_that_fits_comes_once_with_the_fewest_gpus_first(nvswitch_server: Machine, job: Jobs) -> None:
    found = recommend(job(350e6), nvswitch_server).scaling
    assert [size.ranks for size in found] == [1, 2, 4, 8]
    assert (found[0].strategy, found[0].efficiency, found[0].gain) == ("single", 1.0, None)
    assert all(size.gain is not None and size.gain > 0.3 for size in found[1:])


def test_the_size_of_the_plan_shows_the_plan(machine: Machines, job: Jobs) -> None:
    found = recommend(job(760e6), machine(8, "h100", "NV18", nodes=2))
    assert found.plan is not None
    assert found.predicted is not None
    (own,) = [size for size in found.scaling if size.ranks == found.plan.ranks]
    assert (own.gpus, own.nodes, own.strategy) == (len(found.plan.gpus), found.plan.nodes, found.plan.strategy)
    assert own.step_seconds == found.predicted.step_seconds


def test_sizes_that_do_not_fit_are_left_out_and_the_smallest_that_does_counts_as_one(
    nvswitch_server: Machine, job: Jobs
) -> None:
    found = recommend(job(13e9), nvswitch_server).scaling
    assert found[0].ranks > 1
    assert found[0].efficiency == 1.0
    assert recommend(job(70e9), nvswitch_server).scaling == ()


def test_slow_links_make_more_gpus_hurt(one_bridged_pair: Machine, job: Jobs) -> None:
    found = recommend(job(760e6, global_batch=4), one_bridged_pair).scaling
    last = enough(found)
    assert last is not None
    assert last.ranks == 2
    assert next(size.gain for size in found if size.ranks == 4) < 0  # type: ignore[operator]


@pytest.mark.parametrize(
    ("rates", "ranks"), [((10, 20, 40), 4), ((10, 20, 20.5), 2), ((10, 9, 8), 1), ((10, 9, 14), 4), ((10,), 1)]
)
def test_a_size_is_enough_when_no_larger_one_gives_five_percent_more(rates: tuple[float, ...], ranks: int) -> None:
    found = enough([scale(2**index, rate) for index, rate in enumerate(rates)])
    assert found is not None
    assert found.ranks == ranks


def test_hosts_are_paid_whole(machine: Machines, job: Jobs) -> None:
    server = machine(8, "h100", "NV18", nodes=2)
    assert dollars(server, 2, 100.0) is None
    rented = replace(server, price=Price(dollars_per_hour=10.0, region="here", date="2026-01-01", source="a test"))
    assert dollars(rented, 2, 100.0) == pytest.approx(55.56, rel=1e-3)
    costs = {size.ranks: size.dollars_per_million_samples for size in recommend(job(350e6), rented).scaling}
    one, two = costs[1], costs[2]
    assert one is not None
    assert two is not None
    assert two < one


@pytest.mark.parametrize(
    ("optimizer", "batch", "words"),
    [
        ("adamw", 512, "x 2"),
        ("adamw-8bit", 32, "x 0.5"),
        ("sgd", 512, "x 4, with a warm-up"),
        ("sgd-momentum", 64, "x 0.5"),
    ],
)
def test_the_learning_rate_follows_the_batch_by_the_optimizers_rule(
    job: Jobs, optimizer: str, batch: int, words: str
) -> None:
    assert words in learning_rate(job(350e6, optimizer=optimizer), batch)


def test_a_batch_that_all_gpus_cannot_share_is_kept_and_others_are_named(nvswitch_server: Machine, job: Jobs) -> None:
    found = recommend(job(350e6, global_batch=100), nvswitch_server)
    (kept,) = [assumption for assumption in found.assumptions if assumption.what == "global batch"]
    assert kept.value == "100, kept"
    assert "96 (learning rate x 0.98) or 104 (learning rate x 1.02)" in kept.why
    assert max(size.ranks for size in found.scaling) == 4
    assert all(c.plan.global_batch == 100 for c in found.candidates)


def test_a_batch_that_suits_the_gpus_asked_for_needs_no_word(nvswitch_server: Machine, job: Jobs) -> None:
    found = recommend(job(350e6, global_batch=100), nvswitch_server, gpus=4)
    assert "global batch" not in [assumption.what for assumption in found.assumptions]


def test_a_batch_that_no_group_can_share_is_refused_with_the_next_ones(nvswitch_server: Machine, job: Jobs) -> None:
    with pytest.raises(AdvisorError) as error:
        recommend(job(350e6, global_batch=4, micro_batch=4), nvswitch_server, gpus=8)
    assert error.value.hint == "give --global-batch 32 (learning rate x 2.83)"


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(50e6, 3e9), st.sampled_from(("NV12", "PHB", "SYS")))
def test_efficiency_and_gain_follow_from_the_rates(machine: Machines, job: Jobs, params: float, code: str) -> None:
    found = recommend(job(params, global_batch=64), machine(4, "a100 80gb", code)).scaling
    first = found[0]
    for index, size in enumerate(found):
        each = first.samples_per_second / first.ranks
        assert size.efficiency == pytest.approx(size.samples_per_second / size.ranks / each)
        assert size.samples_per_second == pytest.approx(64 / size.step_seconds)
        before = [other.samples_per_second for other in found[:index]]
        assert size.gain == (pytest.approx(size.samples_per_second / max(before) - 1) if before else None)

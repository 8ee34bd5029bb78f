"""What is kept of a machine: whose it is, what it says of predictions, and which measurement a plan's groups take."""

from collections.abc import Callable
from math import inf

import pytest
from msgspec.structs import replace

from advisor.rules.calibration import Calibration, HostCopies, MeasuredGroup, corrected, measured_collective
from advisor.rules.cost import Costs
from advisor.rules.cpu_ranks import cpu_stand_ins
from advisor.rules.fabric import Collective, Op, fabric_of
from advisor.rules.identity import Identity, changes, identity_of, same_host
from advisor.rules.job import Job
from advisor.rules.machine import Gpu, Host, Link, Machine, Software
from advisor.rules.measurements import (
    KEPT_RUNS,
    Links,
    Measurements,
    RunRatio,
    calibration_of,
    collective_of,
    compared,
    correction_of,
    said_of,
    with_links,
    with_measured,
    with_run,
)
from advisor.rules.plan import Correction, Plan

Jobs = Callable[..., Job]
DAY = "2026-11-30T10:00:00+00:00"


def with_uuids(machine: Machine) -> Machine:
    gpus = tuple(replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in machine.gpus)
    return replace(machine, gpus=gpus, software=Software(driver="570.86", nccl="2.27.3", torch="2.13.0"))


def run(ratio: float, **fields: object) -> RunRatio:
    usual = {"date": DAY, "script": "train.py", "strategy": "ddp", "device": "cpu", "ratio": ratio}
    return RunRatio(**usual | fields)  # type: ignore[arg-type]


def kept(*runs: RunRatio, links: Links | None = None) -> Measurements:
    return Measurements(identity=Identity(), links=links, runs=runs)


def collectives(seconds: float, ranks: int) -> dict[Op, Collective]:
    """Make collectives that all take so many seconds, whatever the size."""
    ops: tuple[Op, ...] = ("all_reduce", "all_gather", "reduce_scatter")
    return {op: measured_collective(op, ranks, [(0.0, seconds), (1e9, seconds)]) for op in ops}


def test_an_identity_leaves_out_what_changes_by_itself(a10g_server: Machine) -> None:
    machine = with_uuids(a10g_server)
    later = replace(machine, gpus=tuple(replace(gpu, memory_used=10**9, utilization=0.5) for gpu in machine.gpus))
    assert identity_of(later, "here").fingerprint == identity_of(machine, "renamed").fingerprint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"software": Software(driver="575.51", nccl="2.27.3", torch="2.13.0")}, "driver 570.86 -> 575.51"),
        ({"software": Software(driver="570.86", nccl="2.28.1", torch="2.13.0")}, "nccl 2.27.3 -> 2.28.1"),
        ({"environment": {"NCCL_P2P_DISABLE": "1", "OMP_NUM_THREADS": "4"}}, "NCCL_P2P_DISABLE none -> 1"),
    ],
    ids=["driver", "nccl", "variable"],
)
def test_another_state_of_a_host_is_another_machine_and_says_what_changed(
    a10g_server: Machine, change: dict[str, object], said: str
) -> None:
    before = identity_of(with_uuids(a10g_server), "here")
    after = identity_of(replace(with_uuids(a10g_server), **change), "here")
    assert before.fingerprint != after.fingerprint
    assert same_host(before, after)
    assert list(changes(before, after)) == [said]


def test_fewer_visible_gpus_and_another_link_are_named(a10g_server: Machine) -> None:
    machine = with_uuids(a10g_server)
    first = machine.links[0]
    less = replace(machine, gpus=machine.gpus[:1], links=())
    (gpus, links) = changes(identity_of(machine, "here"), identity_of(less, "here"))
    assert gpus.startswith("visible GPUs GPU0 (GPU-0), GPU1 (GPU-1)")
    assert gpus.endswith("-> GPU0 (GPU-0)")
    assert f"{first.a}-{first.b} {first.code}" in links


def test_hosts_without_gpus_are_told_apart_by_their_names() -> None:
    machine = Machine(host=Host(cpu="EPYC", cpus=2))
    assert identity_of(machine, "one").fingerprint != identity_of(machine, "two").fingerprint
    assert identity_of(cpu_stand_ins(machine, 4), "one") == identity_of(machine, "one")
    assert not same_host(identity_of(machine, "one"), identity_of(machine, "two"))


def test_a_correction_is_the_median_of_the_runs_of_one_kind_of_device() -> None:
    found = correction_of(kept(run(2.0), run(3.0), run(2.5), run(9.0, device="NVIDIA H200")), "cpu")
    assert found is not None
    assert (found.factor, found.runs, found.scripts, found.since) == (2.5, 3, 1, "2026-11-30")
    assert found.spread == pytest.approx(0.25)
    assert correction_of(kept(), "cpu") is None


def test_runs_that_were_predicted_with_other_links_do_not_count() -> None:
    links = Links(date=DAY, seconds=1.0)
    assert correction_of(kept(run(2.0), links=links), "cpu") is None
    assert correction_of(kept(run(2.0, links=DAY), links=links), "cpu") is not None


def test_the_last_twenty_runs_are_kept() -> None:
    found = kept()
    for number in range(KEPT_RUNS + 5):
        found = with_run(found, run(1.0 + number))
    assert [one.ratio for one in found.runs] == [1.0 + number for number in range(5, KEPT_RUNS + 5)]


def test_new_measurements_replace_those_of_the_same_group_alone() -> None:
    pair, four = ("GPU0", "GPU1"), ("GPU0", "GPU1", "GPU2", "GPU3")
    old = MeasuredGroup(gpus=pair, collectives=collectives(1.0, 2))
    whole = MeasuredGroup(gpus=four, collectives=collectives(1.0, 4))
    new = MeasuredGroup(gpus=pair[::-1], collectives=collectives(2.0, 2))
    copies = HostCopies(to_gpu=1e9, from_gpu=1e9)
    before = kept(links=Links(date=DAY, seconds=1.0, groups=(old, whole), host_copies=copies))
    after = with_links(before, Links(date=DAY, seconds=1.0, groups=(new,))).links
    assert after is not None
    assert after.groups == (new, whole)
    assert after.host_copies == copies


def test_noise_lets_no_size_take_longer_than_a_larger_one() -> None:
    found = collective_of("all_reduce", 2, [(1e5, 3e-3), (1e6, 1e-3), (1e7, 5e-3)])
    assert found.curve == ((0.0, 1e-3), (1e5, 1e-3), (1e6, 1e-3), (1e7, 5e-3))
    assert found.latency == 1e-3


def test_hybrid_sharding_takes_the_measured_island_and_the_group_across_islands(machine: object, job: Jobs) -> None:
    pairs = machine(4, "A100", lambda a, b: "NV12" if a // 2 == b // 2 else "SYS")  # type: ignore[operator]
    plan = Plan(
        gpus=("GPU0", "GPU1", "GPU2", "GPU3"),
        strategy="hsdp",
        shard_size=2,
        micro_batch=1,
        global_batch=4,
        precision="bf16-params",
    )
    inside = MeasuredGroup(gpus=("GPU0", "GPU1"), collectives=collectives(0.5, 2))
    across = MeasuredGroup(gpus=("GPU0", "GPU2"), concurrent=2, collectives=collectives(7.0, 2))
    alone = replace(across, concurrent=1)
    given = job(1.3e9, global_batch=4)

    def transfers(*groups: MeasuredGroup) -> tuple[float, float]:
        found = Costs(given, pairs, Calibration(groups=groups))._transfers(plan)
        return found.gather(1e8), found.reduce(1e8)

    modelled = transfers()
    assert transfers(inside) == (0.5, modelled[1])
    assert transfers(across) == (modelled[0], 7.0)
    assert transfers(alone) == modelled


OFFLOADED = Plan(
    gpus=("GPU0", "GPU1", "GPU2", "GPU3"),
    strategy="fsdp",
    shard_size=4,
    cpu_offload=True,
    micro_batch=1,
    global_batch=4,
    precision="bf16-params",
)


def test_ranks_share_the_processors_that_cpu_offload_works_on(a10g_server: Machine, job: Jobs) -> None:
    def adam(ranks: int, sockets: int | None) -> float:
        gpus = tuple(replace(a10g_server.gpus[0], id=f"GPU{i}", index=i) for i in range(ranks))
        server = replace(a10g_server, gpus=gpus, host=replace(a10g_server.host, sockets=sockets))
        plan = replace(OFFLOADED, gpus=tuple(gpu.id for gpu in gpus), shard_size=ranks, global_batch=ranks)
        return Costs(job(1.3e9, global_batch=ranks), server)._device(plan).streaming

    assert adam(2, 1) == adam(4, 1) == adam(8, 2)  # bytes per second of one rank, which a socket has for four
    assert adam(8, 1) == adam(8, None) == adam(4, 1) / 2


def test_measured_copies_price_cpu_offload(a10g_server: Machine, job: Jobs) -> None:
    plan = OFFLOADED
    copies = HostCopies(to_gpu=1e9, from_gpu=3e9)
    found = Costs(job(1.3e9, global_batch=4), a10g_server, Calibration(host_copies=copies))._transfers(plan)
    assert found.host(3e9) == pytest.approx(2.0)  # a copy there takes 3 s, one back 1 s


def test_a_correction_moves_the_whole_step_and_narrows_with_more_scripts(a10g_server: Machine, job: Jobs) -> None:
    given = job(1.3e9, global_batch=4)
    plan = Plan(gpus=("GPU0",), strategy="single", micro_batch=4, global_batch=4, precision="bf16-autocast")
    costs = Costs(given, a10g_server)
    modelled = costs.predict(plan, costs.memory(plan))
    one = Correction(factor=2.0, spread=0.0, runs=1, scripts=1, since="2026-11-30")
    found = Costs(given, a10g_server, Calibration(correction=one)).predict(plan, costs.memory(plan))
    assert found.step_seconds == pytest.approx(2 * modelled.step_seconds)
    assert found.samples_per_second == pytest.approx(modelled.samples_per_second / 2)
    assert (found.source, found.correction, modelled.correction) == ("measured", one, None)
    widths = [
        corrected(modelled, replace(one, scripts=scripts)).step_seconds_range[1] / found.step_seconds
        for scripts in (1, 2, 20)
    ]
    assert widths == sorted(widths, reverse=True)
    assert corrected(modelled, replace(one, spread=3.0)).step_seconds_range[0] > 0


def test_the_fabric_shows_measured_collectives_and_the_rest_of_the_model(a10g_server: Machine) -> None:
    gpus = tuple(gpu.id for gpu in a10g_server.gpus)
    links = Links(date=DAY, seconds=1.0, groups=(MeasuredGroup(gpus=gpus, collectives=collectives(1.0, 4)),))
    found = with_measured(fabric_of(a10g_server), a10g_server, links).collectives
    assert {op: one.source for op, one in found.items()} == {
        "all_reduce": "measured",
        "all_gather": "measured",
        "reduce_scatter": "measured",
        "broadcast": "model",
    }
    assert all(one.modelled is not None for one in compared(a10g_server, links))


def test_links_of_unknown_bandwidth_have_measured_costs_and_no_modelled_ones() -> None:
    gpus = tuple(Gpu(id=f"GPU{i}", index=i) for i in range(2))
    machine = Machine(gpus=gpus, links=(Link(a="GPU0", b="GPU1", code="SYS", kind="inter-socket"),))
    group = MeasuredGroup(gpus=("GPU0", "GPU1"), collectives=collectives(1.0, 2))
    rows = list(compared(machine, Links(date=DAY, seconds=1.0, groups=(group,))))
    assert [row.modelled for row in rows] == [None, None, None]
    assert all(row.measured.bus_bandwidth < inf for row in rows)


def test_what_predictions_rest_on_is_said() -> None:
    group = MeasuredGroup(gpus=("CPU0", "CPU1"), collectives=collectives(1.0, 2))
    found = kept(run(2.0, links=DAY), links=Links(date=DAY, seconds=1.0, groups=(group,)))
    links, steps = said_of(found, calibration_of(found, "cpu"))
    assert links.value == "measured 2026-11-30"
    assert steps.value == "x 2.00"
    assert list(said_of(None, calibration_of(None, "cpu"))) == []

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.probe.load import load_machine
from advisor.rules.errors import AdvisorError
from advisor.rules.job import Job, assume_architecture
from advisor.rules.machine import Machine
from advisor.rules.recommend import recommend
from advisor.rules.script_plan import script_plan

Machines = Callable[..., Machine]
Jobs = Callable[..., Job]


def test_thirteen_billion_do_not_fit_on_four_a10g_and_the_sum_is_shown(a10g_server: Machine, job: Jobs) -> None:
    found = recommend(job(13e9), a10g_server)
    assert found.verdict == "does-not-fit"
    assert found.plan is None
    assert "208 GB of states" in found.summary
    assert "52 GB on each of 4" in found.summary
    (error,) = [finding for finding in found.findings if finding.severity == "error"]
    assert error.code == "MEM101"
    assert "--lora-rank 16" in error.remedy


def test_one_point_three_billion_fit_there(a10g_server: Machine, job: Jobs) -> None:
    found = recommend(job(1.3e9), a10g_server)
    assert found.plan is not None
    assert found.predicted is not None
    assert found.predicted.memory.total <= found.predicted.memory.available


def test_thirteen_billion_are_sharded_on_an_nvswitch_server(nvswitch_server: Machine, job: Jobs) -> None:
    found = recommend(job(13e9), nvswitch_server)
    assert found.plan is not None
    assert found.plan.strategy in ("fsdp", "hsdp")
    assert found.plan.env == {"NCCL_DEBUG": "WARN"}


def test_the_bridged_pair_beats_all_four_gpus_when_traffic_dominates(one_bridged_pair: Machine, job: Jobs) -> None:
    found = recommend(job(760e6, global_batch=4), one_bridged_pair)
    assert found.plan is not None
    assert found.plan.gpus == ("GPU0", "GPU1")
    assert "PAR101" in [finding.code for finding in found.findings]


def test_a_small_model_on_fast_links_is_replicated_with_default_buckets(nvswitch_server: Machine, job: Jobs) -> None:
    found = recommend(job(350e6), nvswitch_server)
    assert found.plan is not None
    assert (found.plan.strategy, found.plan.bucket_cap_mb) == ("ddp", None)


def test_every_plan_keeps_the_global_batch(machine: Machines, job: Jobs) -> None:
    found = recommend(job(1.3e9, global_batch=96), machine(6, "a100 80gb", "NV12"))
    for candidate in found.candidates:
        plan = candidate.plan
        assert plan.samples * plan.accumulation * plan.ranks == 96 == plan.global_batch


def test_every_rejection_has_a_number_and_the_pick_has_none(a10g_server: Machine, job: Jobs) -> None:
    found = recommend(job(1.3e9), a10g_server)
    picked = [candidate for candidate in found.candidates if candidate.rejected is None]
    assert [candidate.plan.strategy for candidate in picked] == [found.plan.strategy if found.plan else ""]
    assert all(any(c.isdigit() for c in candidate.rejected) for candidate in found.candidates if candidate.rejected)


def test_many_hosts_keep_the_sharding_inside_one_or_a_few_of_them(machine: Machines, job: Jobs) -> None:
    found = recommend(job(7e9, global_batch=8 * 64), machine(8, "h100", "NV18", nodes=64))
    assert found.plan is not None
    assert (found.plan.strategy, found.plan.nodes) == ("hsdp", 64)
    assert found.plan.shard_size <= 32


def test_a_copy_too_large_for_a_host_is_shared_by_a_few_hosts(machine: Machines, job: Jobs) -> None:
    found = recommend(job(70e9, global_batch=8 * 1024), machine(8, "h100", "NV18", nodes=1024))
    assert found.plan is not None
    assert found.plan.strategy == "hsdp"
    assert 8 < found.plan.shard_size <= 64


def test_old_gpus_get_fp16_and_cpu_offload_only_on_request(machine: Machines, job: Jobs) -> None:
    server = machine(8, "v100", "NV2", host_memory=10**12)
    assert {c.plan.precision for c in recommend(job(1.3e9), server).candidates} == {"fp16-autocast"}
    assert not any(c.plan.cpu_offload for c in recommend(job(13e9), server).candidates)
    offloaded = recommend(job(13e9, allow=("cpu-offload",)), server)
    assert offloaded.plan is not None
    assert offloaded.plan.cpu_offload


def test_gradients_are_sent_in_16_bits_only_where_that_is_allowed_and_pays(machine: Machines, job: Jobs) -> None:
    slow, fast = machine(4, "a100", "PHB"), machine(4, "a100", "NV12")
    assert {c.plan.gradient_dtype for c in recommend(job(1.3e9), slow).candidates} == {"fp32"}
    allowed = recommend(job(1.3e9, global_batch=16, allow=("bf16-gradients",)), slow, only=("ddp",), gpus=4)
    asked = recommend(job(1.3e9, global_batch=16), slow, only=("ddp",), gpus=4)
    assert allowed.plan is not None
    assert allowed.plan.gradient_dtype == "bf16"
    assert allowed.predicted is not None and asked.predicted is not None
    assert allowed.predicted.step_seconds < 0.97 * asked.predicted.step_seconds
    kept = recommend(job(1.3e9, global_batch=512, allow=("bf16-gradients",)), fast, only=("ddp",))
    assert kept.plan is not None
    assert kept.plan.gradient_dtype == "fp32"
    volta = recommend(
        job(350e6, global_batch=16, allow=("bf16-gradients",)), machine(4, "v100", "PHB"), only=("ddp",), gpus=4
    )
    assert volta.plan is not None
    assert volta.plan.gradient_dtype == "fp16"


@pytest.mark.parametrize(("micro_batch", "checkpointing"), [(1, "none"), (6, "selective"), (16, "full")])
def test_no_more_blocks_are_recomputed_than_memory_asks(
    nvswitch_server: Machine, job: Jobs, micro_batch: int, checkpointing: str
) -> None:
    asked = job(8e9, global_batch=16 * micro_batch, micro_batch=micro_batch, seq=2048)
    found = recommend(asked, nvswitch_server, only=("fsdp",), gpus=8)
    assert found.plan is not None
    assert found.plan.activation_checkpointing == checkpointing
    assert found.plan.micro_batch == micro_batch
    assert ("MEM113" in [finding.code for finding in found.findings]) == (checkpointing != "none")


def test_offload_needs_the_host_memory_as_well(machine: Machines, job: Jobs) -> None:
    asked = job(13e9, allow=("cpu-offload",))
    short = recommend(asked, machine(4, "a10g", "PHB", host_memory=64 * 10**9))
    assert short.verdict == "does-not-fit"
    assert any("52 GB of host memory per rank" in (c.rejected or "") for c in short.candidates if c.plan.cpu_offload)
    unknown = recommend(asked, machine(4, "a10g", "PHB"))
    assert unknown.plan is not None
    assert "host memory" in [assumption.what for assumption in unknown.assumptions]


def test_a_prediction_over_an_assumed_link_is_assumed(one_bridged_pair: Machine, job: Jobs) -> None:
    found = {len(c.plan.gpus): c.predicted.source for c in recommend(job(350e6), one_bridged_pair).candidates}
    assert (found[1], found[2], found[4]) == ("data sheet", "data sheet", "assumed")


@pytest.mark.parametrize(
    ("options", "words"),
    [({"gpus": 9}, "--gpus 9"), ({"nodes": 2}, "--nodes 2"), ({"gpus": 3}, "global batch of 128 can't be split")],
)
def test_what_the_machine_does_not_have_is_said(
    nvswitch_server: Machine, job: Jobs, options: dict[str, int], words: str
) -> None:
    with pytest.raises(AdvisorError, match=words):
        recommend(job(1.3e9), nvswitch_server, **options)  # type: ignore[arg-type]


def test_a_source_without_memory_asks_for_the_gpus_name(a10g_server: Machine, job: Jobs) -> None:
    nameless = replace(a10g_server, gpus=tuple(replace(gpu, name=None, memory=None) for gpu in a10g_server.gpus))
    with pytest.raises(AdvisorError) as error:
        recommend(job(1.3e9), nameless)
    assert "--gpu a10g" in error.value.hint


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(50e6, 5e9), st.floats(1.0, 20.0))
def test_faster_links_never_make_the_best_plan_slower(machine: Machines, params: float, factor: float) -> None:
    slow = machine(4, "a100 80gb pcie", lambda a, b: "NV12" if a // 2 == b // 2 else "SYS")
    links = tuple(replace(link, bandwidth=(link.bandwidth or 0) * factor) for link in slow.links)
    architecture, seq = assume_architecture(params)
    job = Job(params=int(params), trainable_params=int(params), architecture=architecture, seq=seq, global_batch=32)

    def best(server: Machine) -> float:
        steps = [
            c.predicted.step_seconds
            for c in recommend(job, server).candidates
            if c.predicted.memory.total <= c.predicted.memory.available
        ]
        return min(steps, default=0.0)

    assert best(replace(slow, links=links)) <= best(slow) * (1 + 1e-9)


def test_a_script_without_a_job_gets_all_gpus_and_keeps_its_batch(nvswitch_server: Machine) -> None:
    plan = script_plan(nvswitch_server)
    assert (plan.strategy, len(plan.gpus), plan.micro_batch, plan.bucket_cap_mb) == ("ddp", 8, None, None)
    assert script_plan(nvswitch_server, 1).strategy == "single"


def test_an_unknown_network_between_hosts_is_an_assumption_that_is_shown(job: Jobs) -> None:
    def assumed(words: str) -> list[str]:
        return [a.value for a in recommend(job(1e9), load_machine(words)).assumptions if a.what == "network"]

    assert assumed("2x8 a100") == ["12.5 GB/s per adapter between hosts"]
    assert assumed("2x4 v100") == ["1.25 GB/s per adapter between hosts"]
    assert assumed("2x8 a100, ib 200") == assumed("8x a100") == []

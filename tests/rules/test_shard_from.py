"""Where the weights lie while a plan shards them."""

from collections.abc import Callable

import pytest

from advisor.rules.cpu_ranks import cpu_stand_ins
from advisor.rules.job import Job
from advisor.rules.machine import Host, Machine
from advisor.rules.recommend import recommend

Machines = Callable[..., Machine]
Jobs = Callable[..., Job]
GB = 10**9


def homes(job: Job, machine: Machine, **fields: object) -> set[str]:
    """Return where the sharded candidates have the weights."""
    found = recommend(job, machine, **fields).candidates  # type: ignore[arg-type]
    return {c.plan.shard_from for c in found if c.plan.strategy in ("fsdp", "hsdp")}


@pytest.mark.parametrize(
    ("params", "gpu", "host_memory", "home"),
    [
        pytest.param(6.7e9, "3090", None, "cpu", id="nothing is known of the host"),
        pytest.param(6.7e9, "3090", 256 * GB, "cpu", id="26.8 GB on 24, 8 copies of it fit in the host"),
        pytest.param(6.7e9, "3090", 200 * GB, "gpu", id="they do not"),
        pytest.param(5e9, "3090", None, "gpu", id="20 GB on 24"),
        pytest.param(6.7e9, "h100", None, "gpu", id="26.8 GB on 80"),
    ],
)
def test_what_no_gpu_can_hold_whole_is_sharded_from_host_memory(
    machine: Machines, job: Jobs, *, params: float, gpu: str, host_memory: int | None, home: str
) -> None:
    server = machine(8, gpu, "PHB", host_memory=host_memory)
    assert homes(job(params), server, gpus=8) == {home}


def test_replicas_and_quantized_bases_lie_where_the_script_puts_them(machine: Machines, job: Jobs) -> None:
    server = machine(8, "3090", "PHB")
    every = recommend(job(6.7e9), server).candidates
    assert {c.plan.shard_from for c in every if c.plan.strategy in ("single", "ddp")} == {"gpu"}
    assert homes(job(13e9, quantize="nf4", trainable_params=10**7), server) == {"gpu"}


def test_each_host_builds_its_own_copies(machine: Machines, job: Jobs) -> None:
    hosts = machine(8, "3090", "PHB", nodes=4, host_memory=256 * GB)
    assert homes(job(6.7e9), hosts, nodes=4) == {"cpu"}


def test_processes_on_a_cpu_hold_nothing_back(job: Jobs) -> None:
    processes = cpu_stand_ins(Machine(host=Host(memory=4 * GB, memory_available=4 * GB)), 4)
    assert homes(job(350e6), processes) == {"gpu"}  # 1.4 GB on 1

"""A plan is for the GPUs that CUDA_VISIBLE_DEVICES shows, wherever the machine comes from."""

import pytest
from msgspec.structs import replace

from advisor.probe.load import load_machine
from advisor.rules.cpu_ranks import cpu_stand_ins
from advisor.rules.machine import Gpu, Machine, MigInstance
from advisor.rules.recommend import recommend
from advisor.rules.visible_devices import for_planning, hidden_gpus, only_visible


def shown(listed: str, **environment: str) -> Machine:
    eight = load_machine("8x a100 80gb nvswitch")
    gpus = tuple(replace(gpu, uuid=f"GPU-{gpu.index}a-{gpu.index}") for gpu in eight.gpus)
    return replace(eight, gpus=gpus, environment={"CUDA_VISIBLE_DEVICES": listed} | environment)


@pytest.mark.parametrize(
    ("listed", "ids"),
    [
        ("2,3", ["GPU2", "GPU3"]),
        ("GPU-5a,GPU-1a-1", ["GPU5", "GPU1"]),
        ("0,1,9,2", ["GPU0", "GPU1"]),
        ("1,1,0", ["GPU1"]),
    ],
)
def test_a_plan_uses_the_visible_gpus_and_says_so(job, listed: str, ids: list[str]) -> None:
    found = recommend(job(350e6), shown(listed))
    assert found.plan is not None
    assert set(found.plan.gpus) <= set(ids)
    assert [entry.value for entry in found.assumptions if entry.what == "visible GPUs"]
    assert "ENV121" in [finding.code for finding in found.findings]


@pytest.mark.parametrize("listed", ["2,3", "GPU-5a,GPU-1a", "0,7,9"])
def test_a_machine_that_was_cut_is_not_cut_again(listed: str) -> None:
    once = only_visible(shown(listed))
    assert only_visible(once) == once
    assert hidden_gpus(once) == 6
    assert for_planning(once) == (once, ())


def test_an_instance_is_not_cut_again() -> None:
    parts = tuple(MigInstance(uuid=f"MIG-{n}7", memory=20, gpu_instance=n, compute_instance=0) for n in (1, 2))
    whole = Gpu(id="GPU0", index=0, uuid="GPU-aa", mig=parts)
    machine = Machine(gpus=(whole,), environment={"CUDA_VISIBLE_DEVICES": "MIG-GPU-aa/1/0"})
    once = only_visible(machine)
    assert [gpu.uuid for gpu in once.gpus] == ["MIG-17"]
    assert only_visible(once) == once


def test_uuids_of_gpus_that_have_none_known_still_give_their_number() -> None:
    machine = replace(load_machine("8x a100 80gb nvswitch"), environment={"CUDA_VISIBLE_DEVICES": "GPU-7a,GPU-9b"})
    seen = only_visible(machine)
    assert len(seen.gpus) == 2
    assert any("first 2" in gap.why for gap in seen.unknown)
    assert only_visible(seen) == seen


@pytest.mark.parametrize("machine", [shown("0", LOCAL_RANK="0"), shown("0", SLURM_GPUS_PER_TASK="1"), shown("")])
def test_one_rank_or_a_login_node_does_not_stand_for_the_job(machine: Machine) -> None:
    assert for_planning(machine) == (machine, ())


def test_processes_on_cpus_are_not_cut() -> None:
    machine = cpu_stand_ins(Machine(environment={"CUDA_VISIBLE_DEVICES": "0"}), 2)
    assert only_visible(machine) == machine

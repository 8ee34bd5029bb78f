"""What Lightning's Trainer and Fabric are given of a plan, and what stays."""

from types import SimpleNamespace
from typing import Any

import pytest

from advisor.executor.in_process import on_lightning

KNOWN = ("strategy", "devices", "num_nodes", "accelerator", "inference_mode")


class DDPStrategy:
    accelerator = None


class FSDPStrategy:
    accelerator = None


class CPUAccelerator:
    pass


def plan(ranks: int = 2, strategy: str = "ddp", device: str = "cpu") -> dict[str, Any]:
    return {"strategy": strategy, "launcher": {"nproc_per_node": ranks, "device": device}}


def test_what_the_script_leaves_open_is_given() -> None:
    everything = {"strategy": "ddp", "devices": 2, "accelerator": "cpu"}
    assert on_lightning.settle({}, plan(), KNOWN) == (everything, {})
    open_ = {"strategy": "auto", "devices": "auto", "accelerator": "auto", "num_nodes": 1}
    assert on_lightning.settle(open_, plan(), KNOWN) == (everything, {})


def test_what_agrees_with_the_plan_is_left_alone() -> None:
    said = {"strategy": "ddp_find_unused_parameters_true", "devices": [0, 1], "accelerator": "cuda"}
    assert on_lightning.settle(said, plan(device="cuda"), KNOWN) == ({}, {})
    said = {"strategy": DDPStrategy(), "devices": "2", "accelerator": CPUAccelerator()}
    assert on_lightning.settle(said, plan(), KNOWN) == ({}, {})


def test_other_numbers_of_processes_are_replaced() -> None:
    said = {
        "strategy": "ddp_spawn_find_unused_parameters_true",
        "devices": [4, 5],
        "num_nodes": 2,
        "accelerator": "gpu",
    }
    given, kept = on_lightning.settle(said, plan(device="cuda"), KNOWN)
    assert given == {"strategy": "ddp_find_unused_parameters_true", "devices": 2, "num_nodes": 1}
    assert kept == {}


def test_a_strategy_of_the_scripts_own_stays() -> None:
    for strategy in (FSDPStrategy(), "fsdp"):
        given, kept = on_lightning.settle({"strategy": strategy}, plan(), KNOWN)
        assert given == {"devices": 2, "accelerator": "cpu"}
        assert kept == {"strategy": on_lightning.plain(strategy)}


def test_one_process_needs_no_strategy() -> None:
    assert on_lightning.settle({}, plan(1, "single"), KNOWN) == ({"devices": 1, "accelerator": "cpu"}, {})


def test_sharded_models_are_evaluated_without_inference_mode() -> None:
    assert on_lightning.settle({}, plan(strategy="fsdp"), KNOWN)[0]["inference_mode"] is False
    assert "inference_mode" not in on_lightning.settle({}, plan(strategy="fsdp"), KNOWN[:4])[0]  # of Fabric


def test_training_in_other_processes_than_planned_is_refused() -> None:
    with pytest.raises(RuntimeError, match="FSDPStrategy would train with 1 of the 2 processes"):
        on_lightning.refuse(SimpleNamespace(world_size=1), FSDPStrategy(), 2)
    spawning = DDPStrategy()
    spawning._start_method = "spawn"  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="leave start_method out"):
        on_lightning.refuse(SimpleNamespace(world_size=2), spawning, 2)

"""Scripts on DeepSpeed: the JSON that a plan becomes, what of the script's own stays, and what the engine then says."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from advisor.executor.in_process.deepspeed_json import config_of, merge, read_config
from advisor.executor.in_process.on_deepspeed import refuse_empty_states, take_and_return_fp32
from advisor.executor.refuse import refuse
from advisor.executor.report import Run
from advisor.executor.script import ScriptFacts
from advisor.rules.errors import AdvisorError

LIBRARIES = Path(__file__).parents[2] / "fixtures" / "scripts" / "libraries"
SCRIPT = "libraries/on_deepspeed.py"
FSDP: dict[str, Any] = {"strategy": "fsdp", "shard_size": 2}
KEEPS: dict[str, Any] = FSDP | {"reshard_after_forward": False}
OFFLOAD = {"device": "cpu", "pin_memory": True}
MICRO, ACCUMULATION = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
SECONDS = 300  # DeepSpeed alone takes half a minute to import


@pytest.fixture
def plan(scripts: Any) -> Any:
    return lambda **fields: msgspec.to_builtins(scripts.plan(2, **fields))


@pytest.mark.parametrize(
    ("fields", "config"),
    [
        ({"bucket_cap_mb": 25.0}, {"zero_optimization": {"stage": 0}}),
        (KEEPS, {"zero_optimization": {"stage": 2}}),
        (FSDP, {"zero_optimization": {"stage": 3}}),
        (KEEPS | {"bucket_cap_mb": 25.0}, {"zero_optimization": {"stage": 2, "reduce_bucket_size": 6553600}}),
        (
            KEEPS | {"cpu_offload": True},
            {"zero_optimization": {"stage": 2, "offload_optimizer": OFFLOAD}, "zero_force_ds_cpu_optimizer": False},
        ),
        (
            FSDP | {"cpu_offload": True},
            {
                "zero_optimization": {"stage": 3, "offload_optimizer": OFFLOAD, "offload_param": OFFLOAD},
                "zero_force_ds_cpu_optimizer": False,
            },
        ),
        (
            FSDP | {"precision": "bf16-params"},
            {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}, "communication_data_type": "fp32"},
        ),
        (
            {"gradient_dtype": "bf16", "bucket_cap_mb": 1.0},
            {"zero_optimization": {"stage": 0}, "communication_data_type": "bf16"},
        ),
    ],
)
def test_a_plan_becomes_deepspeeds_json(plan: Any, fields: dict[str, Any], config: dict[str, Any]) -> None:
    assert config_of(plan(**fields)) == config


@pytest.mark.parametrize(
    ("script", "fields", "merged", "kept"),
    [
        pytest.param(
            {"train_batch_size": "auto", MICRO: "auto", ACCUMULATION: "auto", "zero_optimization": {"stage": "auto"}},
            {"micro_batch": 2, "accumulation": 2},
            {MICRO: 2, ACCUMULATION: 2, "zero_optimization": {"stage": 0}},
            {},
            id="all left open",
        ),
        pytest.param(
            {"train_batch_size": 8, MICRO: "auto", ACCUMULATION: "auto"},
            {"micro_batch": 2, "accumulation": 2},
            {"train_batch_size": 8, MICRO: 2, ACCUMULATION: 2, "zero_optimization": {"stage": 0}},
            {},
            id="the batch of a step is split",
        ),
        pytest.param(
            {"train_batch_size": 8, MICRO: "auto", ACCUMULATION: "auto"},
            {"micro_batch": 4, "accumulation": 2, "global_batch": 16},
            {"train_batch_size": 8, "zero_optimization": {"stage": 0}},
            {"global_batch": 8},
            id="another batch of a step stays",
        ),
        pytest.param(
            {MICRO: 4},
            {"micro_batch": 2, "accumulation": 2},
            {MICRO: 4, "zero_optimization": {"stage": 0}},
            {"micro_batch": 4},
            id="a size without accumulation stays",
        ),
        pytest.param(
            {MICRO: 4, "zero_optimization": {"stage": 1}},
            FSDP | {"cpu_offload": True},
            {
                MICRO: 4,
                "zero_optimization": {"stage": 1, "offload_optimizer": OFFLOAD},
                "zero_force_ds_cpu_optimizer": False,
            },
            {"strategy": "ZeRO stage 1"},
            id="the script's stage stays, the rest fits it",
        ),
        pytest.param(
            {MICRO: 4, "zero_optimization": True},
            FSDP,
            {MICRO: 4, "zero_optimization": True},
            {"strategy": "ZeRO stage 1"},
            id="stage as a flag",
        ),
        pytest.param(
            {MICRO: 4, "fp16": {"enabled": True}, "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}},
            FSDP | {"precision": "bf16-params", "gradient_dtype": "bf16"},
            {
                MICRO: 4,
                "fp16": {"enabled": True},
                "zero_optimization": {"stage": 3},
                "communication_data_type": "bf16",
            },
            {"precision": "fp16"},
            id="the script's precision stays",
        ),
    ],
)
def test_what_the_script_says_stays(plan: Any, script: Any, fields: Any, merged: Any, kept: Any) -> None:
    before = json.dumps(script)
    result, given, stays = merge(script, plan(**fields), 2)
    assert (result, stays) == (merged, kept)
    assert json.dumps(script) == before
    assert all(name.split(".")[0] in result for name in given)


def test_a_plan_without_sharding_on_one_gpu_leaves_the_stage(scripts: Any) -> None:
    assert merge({MICRO: 4}, msgspec.to_builtins(scripts.plan(1)), 1) == ({MICRO: 4}, {}, {})


def test_configs_are_read_as_deepspeed_does(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{"train_batch_size": 8}')
    as_base64 = "eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0="
    assert read_config(str(file)) == read_config(as_base64) == read_config({"train_batch_size": 8})


def test_hybrid_sharding_is_refused(scripts: Any) -> None:
    facts = ScriptFacts(path="train.py", kind="deepspeed")
    with pytest.raises(AdvisorError, match="shards over all ranks, not within groups of 2"):
        refuse(scripts.plan(4, strategy="hsdp", shard_size=2), facts)
    refuse(scripts.plan(2, **FSDP, activation_checkpointing="full"), facts)
    refuse(scripts.plan(2), facts)


def test_a_state_without_weights_is_an_error() -> None:
    model = torch.nn.Linear(2, 1)
    refuse_empty_states(model)
    assert list(model.state_dict()) == ["weight", "bias"]
    model.weight.data = torch.empty(0)
    with pytest.raises(RuntimeError, match=r"call engine.save_checkpoint\(\) or"):
        model.state_dict()


def test_a_model_of_16_bit_weights_takes_and_returns_fp32() -> None:
    model = torch.nn.Linear(2, 1).bfloat16()
    take_and_return_fp32(model)
    assert model(torch.ones(2)).dtype == torch.float32


def apply(scripts: Any, plan: Any, folder: Path, *arguments: str, **environment: str) -> tuple[list[str], str, Run]:
    env = os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "HANG_TIMEOUT": str(SECONDS)} | environment
    process = scripts.start_applied(SCRIPT, str(folder), *arguments, plan=plan, env=env)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err.decode()
    return out.decode().splitlines(), err.decode(), scripts.report()


@pytest.mark.slow
def test_initialize_gets_the_merged_config(scripts: Any, tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"train_batch_size": 8, MICRO: "auto", ACCUMULATION: "auto"}))
    plan = scripts.plan(2, micro_batch=2, accumulation=2, **FSDP)
    stand_in = str(LIBRARIES / "stand_in")
    out, err, report = apply(scripts, plan, tmp_path, "--deepspeed_config", str(file), PYTHONPATH=stand_in)
    config = {"train_batch_size": 8, MICRO: 2, ACCUMULATION: 2, "zero_optimization": {"stage": 3}}
    assert err == ""
    assert json.loads(out[0].removeprefix("received ")) == config
    assert json.loads((scripts.folder / "deepspeed.json").read_bytes()) == config
    used = {change.argument: (change.plan, change.used) for change in report.changes}
    assert used == {"zero_optimization.stage": (3, "plan"), MICRO: (2, "plan"), ACCUMULATION: (2, "plan")}
    became = [(one.library, one.what, one.wanted, one.became, one.ranks) for one in report.became]
    assert ("deepspeed 0.19.8", "ZeRO stage", 3, 3, (0, 1)) in became
    assert ("deepspeed 0.19.8", "accumulation", 2, 2, (0, 1)) in became
    assert [rank.steps for rank in report.ranks] == [6, 6]  # though the optimizer is called twelve times


@pytest.mark.slow
def test_the_scripts_own_stage_stays_and_a_line_says_so(scripts: Any, tmp_path: Path) -> None:
    stand_in = str(LIBRARIES / "stand_in")
    out, err, report = apply(scripts, scripts.plan(1, strategy="fsdp"), tmp_path, "--stage", "1", PYTHONPATH=stand_in)
    assert '"stage": 1' in out[0]
    assert err == (
        "advisor: the script's DeepSpeed config says ZeRO stage 1, which stays; the plan, and so its prediction, has "
        'stage 3: leave "stage" out of the config for that\n'
    )
    assert [(change.argument, change.script, change.used) for change in report.changes] == [
        ("strategy", "ZeRO stage 1", "script")
    ]
    assert [(one.wanted, one.became) for one in report.became if one.what == "ZeRO stage"] == [(3, 1)]


@pytest.mark.slow
def test_losses_with_deepspeed_itself_are_those_without_a_plan(scripts: Any, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"train_batch_size": 8}))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", SCRIPT]
    native = subprocess.run(
        [*command, str(tmp_path), "--deepspeed_config", str(file)],
        cwd=LIBRARIES.parent,
        env=os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        timeout=SECONDS,
        check=True,
    )
    # 0: else weights as small as these stay whole
    open_ = {"train_batch_size": 8, MICRO: "auto", ACCUMULATION: "auto"}
    file.write_text(json.dumps(open_ | {"zero_optimization": {"stage3_param_persistence_threshold": 0}}))
    fields = FSDP | {"micro_batch": 2, "accumulation": 2, "activation_checkpointing": "full", "cpu_offload": True}
    out, _, report = apply(scripts, scripts.plan(2, **fields), tmp_path, "--deepspeed_config", str(file))
    losses = [
        [float(line.split()[-1]) for line in lines if "loss" in line]
        for lines in (native.stdout.decode().splitlines(), out)
    ]
    assert len(losses[0]) == 6
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    assert all(one.became == one.wanted for one in report.became)
    assert [rank.steps for rank in report.ranks] == [6, 6]

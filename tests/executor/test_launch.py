"""The command and environment that a plan leads to."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.executor.apply import dry_run
from advisor.executor.folder import RunFolder
from advisor.executor.launch import WORKER, Launch, plan_launch
from advisor.executor.script import Place, ScriptFacts
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Gpu, Machine
from advisor.rules.plan import Launcher, Plan


def launch(plan: Plan, *arguments: str, environ: dict[str, str] | None = None, **known: Any) -> Launch:
    return plan_launch(plan, "train.py", arguments, RunFolder(Path("/runs/1")), environ=environ or {}, **known)


def gpu_plan(scripts: Any, **launcher: Any) -> Plan:
    plan: Plan = scripts.plan(gpus=("GPU3", "GPU1"), launcher=Launcher(nproc_per_node=2, **launcher))
    return plan


def test_command_is_torchrun_with_our_worker_and_the_script_as_typed(scripts: Any) -> None:
    argv = launch(scripts.plan(ranks=2), "--help", "--", "-x").argv
    assert argv[:4] == (sys.executable, "-P", "-m", "torch.distributed.run")
    assert "--nproc-per-node=2" in argv
    assert argv[-5:] == (str(WORKER), "train.py", "--help", "--", "-x")
    assert WORKER.is_file()


def test_shell_line_reads_back_to_the_same_words(scripts: Any) -> None:
    made = launch(scripts.plan(env={"NCCL_ALGO": "a b"}), "it's", environ={"PET_TEE": "3"})
    words = shlex.split(made.shell())
    assert words[:3] == ["env", "-u", "PET_TEE"]
    assert "NCCL_ALGO=a b" in words
    assert tuple(words[-len(made.argv) :]) == made.argv


def test_gpus_are_named_by_uuid_where_it_is_known(scripts: Any) -> None:
    machine = Machine(gpus=tuple(Gpu(id=f"GPU{i}", index=i, uuid=f"GPU-{i}{i}") for i in range(4)))
    assert launch(gpu_plan(scripts), machine=machine).environment["CUDA_VISIBLE_DEVICES"] == "GPU-33,GPU-11"


def test_gpus_are_named_by_number_in_pci_order_else(scripts: Any) -> None:
    environment = launch(gpu_plan(scripts)).environment
    assert environment["CUDA_VISIBLE_DEVICES"] == "3,1"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_cpu_processes_see_no_gpu(scripts: Any) -> None:
    assert launch(scripts.plan(ranks=2)).environment["CUDA_VISIBLE_DEVICES"] == ""


def test_threads_are_the_plans_unless_the_user_set_them(scripts: Any) -> None:
    plan = gpu_plan(scripts, threads_per_rank=6)
    assert launch(plan).environment["OMP_NUM_THREADS"] == "6"
    assert "OMP_NUM_THREADS" not in launch(plan, environ={"OMP_NUM_THREADS": "2"}).environment


def test_numa_binding_is_for_gpus_only(scripts: Any) -> None:
    assert "--numa-binding=node" in launch(gpu_plan(scripts, numa_binding="node")).argv
    on_cpu = scripts.plan(launcher=Launcher(device="cpu", numa_binding="node"))
    assert not [word for word in launch(on_cpu).argv if "numa" in word]


def test_dry_run_makes_no_folder(scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    made = dry_run(scripts.plan(), "train.py", [])
    assert "-train/plan.json" in made.environment["ADVISOR_PLAN"]
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


PLAIN = "import torch\ntorch.ones(1, requires_grad=True).backward()\n"
FSDP = "from torch.distributed.fsdp import fully_shard\nfully_shard(m)\n"
SPAWN = "import torch.multiprocessing as mp, torch.distributed as dist\ndist.init_process_group()\nmp.spawn(f)\n"


@pytest.mark.parametrize(
    ("source", "message", "hint"),
    [
        (FSDP, "line 2.*the plan is for DDP", "torchrun"),
        (SPAWN, "line 3.*2 times", "LOCAL_RANK"),
    ],
)
def test_script_that_would_do_something_else_is_refused(
    scripts: Any, tmp_path: Path, source: str, message: str, hint: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    with pytest.raises(AdvisorError, match=message) as refusal:
        dry_run(scripts.plan(ranks=2), str(script), [])
    assert hint in refusal.value.hint


@pytest.mark.parametrize(
    ("fields", "message", "hint"),
    [
        ({"strategy": "hsdp", "shard_size": 2}, "shard_size is 2, of 2 ranks", "divides"),
        ({"cpu_offload": True}, "only FSDP can offload", "fsdp"),
        ({"precision": "bf16-params"}, "only FSDP brings its own 16-bit weights", "autocast"),
        ({"nodes": 2}, "2 hosts", "--machine"),
        ({"launcher": Launcher(nproc_per_node=3, device="cpu")}, "gpus lists 2", "equal"),
    ],
)
def test_plan_that_can_not_be_done_is_refused(scripts: Any, fields: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(AdvisorError, match=message) as refusal:
        dry_run(scripts.plan(ranks=2, **fields), str(scripts.example), [])
    assert hint in refusal.value.hint


@pytest.mark.parametrize("source", [PLAIN, FSDP, SPAWN])
def test_one_process_may_run_any_script(scripts: Any, tmp_path: Path, source: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)
    assert dry_run(scripts.plan(), str(script), []).argv[-1] == str(script)


def test_ranks_that_would_share_the_first_gpu_see_one_each(scripts: Any) -> None:
    facts = ScriptFacts(path="train.py", kind="ddp", first_gpu=Place(file="train.py", line=3))
    assert "--virtual-local-rank" in launch(gpu_plan(scripts), facts=facts).argv
    assert "--virtual-local-rank" not in launch(scripts.plan(ranks=2), facts=facts).argv  # on CPUs
    assert "--virtual-local-rank" not in launch(gpu_plan(scripts), facts=replace(facts, first_gpu=None)).argv


def test_ranks_of_a_plain_script_draw_the_same_and_see_one_gpu_each(scripts: Any) -> None:
    facts = ScriptFacts(path="train.py", kind="plain")
    told = launch(gpu_plan(scripts), facts=facts)
    assert "--virtual-local-rank" in told.argv
    assert json.loads(told.environment["ADVISOR_PLAIN"])["loss"] == "mean"
    assert told.environment["PYTHONHASHSEED"].isdigit()
    assert "ADVISOR_PLAIN" not in launch(scripts.plan(), facts=facts).environment  # one process is python's own run


FSDP: dict[str, Any] = {"strategy": "fsdp", "shard_size": 2}


@pytest.mark.parametrize(
    ("ranks", "fields"),
    [
        pytest.param(2, {"accumulation": 2}, id="accumulation"),
        pytest.param(2, {"gradient_dtype": "bf16"}, id="16-bit gradients under DDP"),
        pytest.param(2, FSDP | {"cpu_offload": True}, id="offload"),
        pytest.param(1, {"activation_checkpointing": "full"}, id="recomputation on one GPU"),
    ],
)
def test_plans_that_no_plain_script_runs_under_are_refused(
    scripts: Any, tmp_path: Path, ranks: int, fields: dict[str, Any]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLAIN)
    with pytest.raises(AdvisorError, match="script for one process"):
        dry_run(scripts.plan(ranks=ranks, **fields), str(script), [])


@pytest.mark.parametrize(
    "fields",
    [FSDP, FSDP | {"gradient_dtype": "bf16", "precision": "bf16-params"}, {"activation_checkpointing": "selective"}],
)
def test_a_plain_script_runs_under_plans_that_shard_or_recompute(
    scripts: Any, tmp_path: Path, fields: dict[str, Any]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLAIN)
    assert dry_run(scripts.plan(ranks=2, **fields), str(script), []).argv[-1] == str(script)


def test_accelerate_and_trainer_are_told_the_plan_by_their_own_variables(scripts: Any) -> None:
    plan = scripts.plan(4, strategy="hsdp", shard_size=2, activation_checkpointing="full")
    for kind in ("accelerate", "trainer"):
        told = launch(plan, facts=ScriptFacts(path="train.py", kind=kind)).environment
        assert told["ACCELERATE_USE_FSDP"] == told["FSDP_ACTIVATION_CHECKPOINTING"] == "true"
        half = launch(
            replace(plan, activation_checkpointing="selective"), facts=ScriptFacts(path="train.py", kind=kind)
        )
        assert half.environment["FSDP_ACTIVATION_CHECKPOINTING"] == "false"  # accelerate would take all blocks
        assert told["PARALLELISM_CONFIG_DP_REPLICATE_SIZE"] == told["PARALLELISM_CONFIG_DP_SHARD_SIZE"] == "2"
    told = launch(gpu_plan(scripts), facts=ScriptFacts(path="train.py", kind="accelerate")).environment
    assert not [name for name in told if name.startswith(("ACCELERATE", "FSDP", "PARALLELISM"))]

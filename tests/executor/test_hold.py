"""Modules that stay in host memory until they are sharded."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from advisor.executor.apply import as_it_will_run
from advisor.executor.in_process import hold, hooks, sharded
from advisor.executor.script import ScriptFacts
from advisor.rules.plan import Launcher

SECONDS = 120  # far more than anything here takes
META = torch.device("meta")  # plays the accelerator: what was moved there shows it, and has lost its weights


class Base(nn.Module):
    """Stands for torch's own, so that only modules of these tests are held back."""


class Net(Base):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.head = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(x))


@pytest.fixture(autouse=True)
def held(monkeypatch: pytest.MonkeyPatch) -> hold.Hold:
    for name in ("to", "cuda"):
        monkeypatch.setattr(Base, name, getattr(nn.Module, name), raising=False)
    holding = hold.Hold("meta", hooks.failing_open)
    holding.steer_modules(SimpleNamespace(Module=Base))
    return holding


def devices(module: nn.Module) -> set[str]:
    return {tensor.device.type for tensor in module.state_dict().values()}


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        pytest.param(("meta",), {}, id="a name"),
        pytest.param((META,), {"non_blocking": True}, id="a device"),
        pytest.param((torch.empty(1, device=META),), {}, id="a tensor there"),
        pytest.param((), {"device": META}, id="by keyword"),
    ],
)
def test_a_move_is_held_back_and_leaves_the_weights(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    model = Net()
    weight = model.head.weight
    assert model.to(*args, **kwargs) is model
    assert devices(model) == {"cpu"}
    assert model.head.weight is weight
    assert hold.release(model) == META
    assert hold.release(model) is None


def test_dtype_and_memory_format_change_at_once() -> None:
    model = Net().to(META, torch.float64)
    assert (model.head.weight.dtype, model.head.weight.device.type) == (torch.float64, "cpu")
    convolution = nn.Sequential(nn.Conv2d(2, 2, 3))
    module = Base()
    module.part = convolution
    module.to(META, memory_format=torch.channels_last)
    assert convolution[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert devices(module) == {"cpu"}


def test_what_trains_nothing_goes_where_it_is_told_and_errors_are_torchs_own() -> None:
    assert devices(Net().requires_grad_(False).to(META)) == {"meta"}
    with pytest.raises(TypeError, match="only accepts floating point"):
        Net().to(META, torch.int32)
    with pytest.raises(RuntimeError, match="device"):
        Net().to("nowhere")


def test_the_last_move_counts() -> None:
    model = Net().to(META).to("cpu")
    assert hold.release(model) is None
    assert devices(model.to(META).double()) == {"cpu"}
    assert hold.release(model) == META


@pytest.mark.parametrize("part", ["", "inner.0"])
def test_what_is_called_before_it_is_wrapped_is_moved_whole_and_one_line_says_so(
    capsys: pytest.CaptureFixture[str], part: str
) -> None:
    model = Net().to(META)
    model.get_submodule(part)(torch.zeros(3, 2, device=META))
    assert devices(model) == {"meta"}
    assert hold.release(model) is None
    said = capsys.readouterr().err
    assert said.startswith("advisor: Net is called before DistributedDataParallel wraps it")
    assert "it is moved whole to meta" in said
    assert said.count("\n") == 1


def test_a_copy_waits_like_its_original_and_is_moved_alone() -> None:
    model = Net().to(META)
    twin = copy.deepcopy(model)
    twin(torch.zeros(3, 2, device=META))
    assert (devices(twin), devices(model)) == ({"meta"}, {"cpu"})
    assert hold.release(model) == META


def test_cuda_is_held_back_as_well() -> None:
    hold.Hold("cuda", hooks.failing_open).steer_modules(SimpleNamespace(Module=Base))
    for asked, index in ((None, None), (1, 1), ("cuda:1", 1), (torch.device("cuda", 1), 1)):
        assert hold.release(Net().cuda(asked)) == torch.device("cuda", index)


def test_fsdp_of_the_scripts_own_gets_the_model_where_the_script_wants_it(held: hold.Hold) -> None:
    seen = []

    class FullyShardedDataParallel:
        def __init__(self, module: nn.Module) -> None:
            seen.append(devices(module))

    held.steer_fsdp1(SimpleNamespace(FullyShardedDataParallel=FullyShardedDataParallel))
    FullyShardedDataParallel(Net().to(META))
    assert seen == [{"meta"}]


def test_moves_are_held_back_where_the_plan_says_so_and_there_is_an_accelerator(scripts: Any) -> None:
    for home, device, held in (("cpu", "cuda", True), ("gpu", "cuda", False), ("cpu", "cpu", False)):
        launcher = Launcher(nproc_per_node=2, device=device)
        plan = msgspec.to_builtins(scripts.plan(2, strategy="fsdp", shard_from=home, launcher=launcher))
        steered = dict(hooks.planned_acts(plan, SimpleNamespace(note=None), plain=False))
        assert ("torch.nn.modules.module" in steered) == held


@pytest.mark.parametrize(
    ("kind", "home"), [("ddp", "cpu"), ("fsdp", "gpu"), ("accelerate", "gpu"), ("lightning", "gpu")]
)
def test_libraries_and_scripts_that_shard_move_models_themselves(
    scripts: Any, capfd: pytest.CaptureFixture[str], kind: Any, home: str
) -> None:
    plan = scripts.plan(2, strategy="fsdp", shard_from="cpu")
    assert as_it_will_run(plan, ScriptFacts(path="train.py", kind=kind)).shard_from == home
    assert ('shard_from "cpu" of the plan has no effect' in capfd.readouterr().err) == (home == "gpu")


def test_weights_from_before_stay_in_host_memory_while_a_block_is_sharded() -> None:
    block = nn.Linear(2, 2)
    weight, content = block.weight, block.weight.detach().clone()
    with hold.in_pieces(block, torch.device("cpu")):
        weight.data = torch.zeros(2, 2)  # as fully_shard moves it
        block.weight = nn.Parameter(torch.zeros(1, 2))
    assert weight.equal(content)
    assert block.weight.shape == (1, 2)


def test_weights_in_host_memory_are_sent_over_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.BatchNorm1d(2)
    mine = [tensor.data_ptr() for tensor in model.state_dict().values()]
    sent = []
    monkeypatch.setattr(torch.distributed, "get_global_rank", lambda *_: 0)
    monkeypatch.setattr(torch.distributed, "broadcast", lambda tensor, *_: sent.append(tensor.fill_(7).data_ptr()))
    sharded.synchronize(model, None, torch.device("cpu", 0))  # torch takes it for another device, and copies
    assert {tensor.unique().item() for tensor in model.state_dict().values()} == {7}
    assert len(sent) == len(mine)
    assert not set(sent) & set(mine)


@pytest.mark.slow
def test_training_on_what_was_held_back_is_that_of_ddp(scripts: Any) -> None:
    plan = msgspec.json.encode(scripts.plan(2, strategy="fsdp", shard_size=2, shard_from="cpu")).decode()
    script = str(Path(__file__).with_name("trains_on_meta.py"))
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, plan]
    done = subprocess.run([sys.executable, *launch], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    given = {"fully_shard": "3 blocks and the rest of Model", "reshard_after_forward": True, "shard_from": "cpu"}
    assert json.loads(done.stdout) == [given]
    said = [line for line in done.stderr.splitlines() if line.startswith("advisor:")]
    assert [line.split()[1] for line in said] == ["Linear", "Model"]  # the one that is never wrapped, and the copy

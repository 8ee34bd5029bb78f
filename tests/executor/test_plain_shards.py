"""Plain scripts on two ranks that share one copy of the model: trained as one process trains them, or stopped."""

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from advisor.executor.folder import RunFolder
from advisor.executor.in_process import plain_recompute, whole
from advisor.executor.in_process.fsdp_state import let_data_be_set, reduce_unused
from advisor.executor.in_process.plain_doors import _callable_parts, _holds_tensor, open_doors
from advisor.executor.in_process.plain_shards import Model, undivided
from advisor.executor.launch import Launch, plan_launch
from advisor.executor.prove import in_full_precision, prove
from advisor.rules.errors import AdvisorError
from advisor.rules.plan import Plan

PLAIN = Path(__file__).parents[2] / "fixtures" / "scripts" / "plain"
FSDP: dict[str, Any] = {"strategy": "fsdp", "shard_size": 2}


def test_single_numbers_views_and_weights_with_hooks_are_not_divided() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 4), nn.Linear(4, 4))
    model[1].weight = nn.Parameter(model[0].weight.t())
    model.temperature = nn.Parameter(torch.tensor(1.0))
    model[2].bias.register_hook(lambda gradient: gradient)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert [names[id(one)] for one in undivided(model)] == ["temperature", "0.weight", "1.weight", "2.bias"]


def test_a_model_is_entered_by_its_parts_and_by_those_in_containers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ModuleList([nn.ReLU(), nn.Sequential(nn.Tanh())]))
    assert [type(part).__name__ for part in _callable_parts(model)] == ["Linear", "ReLU", "Sequential", "Tanh"]


@pytest.mark.parametrize(
    ("given", "enters"), [(({"x": [torch.ones(1)]},), True), ((), False), (("cpu", 3, [None]), False)]
)
def test_a_method_that_gets_no_tensor_does_not_enter(given: tuple[Any, ...], enters: bool) -> None:
    assert _holds_tensor((given, {})) is enters


class Stack(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(norm) for _ in range(2))


class Layer(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = copy.deepcopy(norm)
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(x))


def test_blocks_that_keep_statistics_are_not_recomputed() -> None:
    with pytest.raises(RuntimeError, match=r"layers\.0 keeps statistics"):
        plain_recompute.recompute("full", Stack(nn.BatchNorm1d(3)))


def test_blocks_that_are_recomputed_are_pickled_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Module, "__reduce_ex__", nn.Module.__reduce_ex__)
    plain_recompute.steer_modules(nn.modules.module)
    model = Stack(nn.LayerNorm(3))
    plain_recompute.recompute("full", model)
    assert model.layers[0]._forward_hooks
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert not other.layers[0]._forward_hooks
        assert not other.layers[0]._forward_pre_hooks_with_kwargs
        torch.testing.assert_close(other.layers[0](torch.ones(1, 3)), model.layers[0](torch.ones(1, 3)))


def test_the_proof_is_made_in_full_precision(scripts: Any) -> None:
    plan = scripts.plan(2, **FSDP, precision="bf16-params", gradient_dtype="bf16", activation_checkpointing="full")
    assert in_full_precision(plan) == replace(plan, precision=None, gradient_dtype="fp32")


class Loose(nn.Module):
    """Returns what FSDP finds no output in."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return SimpleNamespace(y=self.first(x))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x)


@pytest.fixture(scope="module")
def world() -> Iterator[None]:
    """Be one of one rank."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def sharded(world: None) -> tuple[Any, Model]:
    root = fully_shard(Loose(), mesh=init_device_mesh("cpu", (1,)))
    root._get_fsdp_state()._lazy_init()
    reduce_unused(root)
    open_doors(root, compiled=False)
    model = Model(root, SimpleNamespace(factor=lambda: 0.5))
    return root, model


def passed(model: Model, loss: torch.Tensor) -> bool:
    model.pass_begins()
    loss.backward()
    return model.pass_ended()


def test_gradients_that_sharding_would_lose_are_an_error(sharded: tuple[Any, Model]) -> None:
    root, model = sharded
    with pytest.raises(RuntimeError, match=r"gradients of first\.\w+ came from outside"):
        passed(model, root(torch.ones(2, 3)).y.sum())


def test_a_method_and_a_part_are_gathered_and_reduced_and_what_none_reached_has_no_gradient(
    sharded: tuple[Any, Model],
) -> None:
    root, model = sharded
    for entered in (root.encode, root.first):
        loss = entered(torch.ones(2, 3)).sum()
        assert not isinstance(root.first.weight, DTensor)
        assert passed(model, loss)
        assert isinstance(root.first.weight, DTensor)
    assert root.first.bias.grad.full_tensor().tolist() == [4.0] * 3
    assert root.second.bias.grad is None


def test_what_is_changed_between_the_passes_is_an_error(sharded: tuple[Any, Model]) -> None:
    root, model = sharded
    loss = root.encode(torch.ones(2, 3)).sum()
    with torch.no_grad():
        root.first.weight.mul_(2)
    with pytest.raises(RuntimeError, match=r"first\.weight was changed between"):
        passed(model, loss)


def test_weights_are_in_shards_after_an_evaluation(sharded: tuple[Any, Model]) -> None:
    root, _ = sharded
    with torch.no_grad():
        root.encode(torch.ones(2, 3))
    assert isinstance(root.first.weight, DTensor)


def test_data_that_a_weight_is_given_is_what_is_gathered_and_the_old_can_be_given_back(
    sharded: tuple[Any, Model],
) -> None:
    root, _ = sharded
    let_data_be_set(root)
    weight, x = root.first.weight, torch.ones(2, 3)
    before, first = weight.data, root.encode(x).detach()
    root.reshard()
    weight.data = torch.zeros(3, 3)
    assert torch.equal(root.encode(x), root.first.bias.expand(2, 3))
    root.reshard()
    weight.data = before
    assert torch.equal(root.encode(x), first)


def test_a_weight_makes_ordinary_tensors_but_those_of_its_own_shape(
    sharded: tuple[Any, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in whole.MAKES:
        monkeypatch.setattr(DTensor, name, getattr(DTensor, name))  # put back afterwards
    whole.let_weights_make_tensors()
    weight = sharded[0].first.weight
    state = weight.new_zeros(2, 5)
    assert (type(state), state.shape) == (torch.Tensor, (2, 5))
    assert isinstance(weight.new_zeros(weight.shape), DTensor)


def test_a_weight_that_the_loss_takes_itself_has_no_share(sharded: tuple[Any, Model]) -> None:
    root, model = sharded
    model.pass_begins()
    (root.first.bias * torch.full_like(root.first.bias, 3.0)).sum().backward()
    assert root.first.bias.grad.full_tensor().tolist() == [6.0] * 3  # divided by the factor that losses have


def placed(name: str, folder: Path) -> str:
    """Put a script into a folder, and have it write there."""
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(f"import os; os.chdir({str(folder)!r})\n" + (PLAIN / name).read_text())
    return str(script)


@pytest.mark.slow
def test_a_sharded_plain_script_trains_as_in_one_process(scripts: Any, tmp_path: Path) -> None:
    """It ties weights, clips, averages, pickles its model, draws new weights, and reads and restores what it saved."""
    alone = scripts.alone(placed("blocks_whole.py", tmp_path / "alone"))
    plan = scripts.plan(2, **FSDP, activation_checkpointing="selective")
    both = scripts.applied(placed("blocks_whole.py", tmp_path / "both"), plan=plan)
    assert (alone.exit_code, both.exit_code) == (0, 0), both.err
    assert both.out == alone.out
    files = sorted(path.name for path in (tmp_path / "alone").iterdir())
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == files
    for name in (name for name in files if name.endswith(".pt")):
        one, other = (torch.load(tmp_path / run / name) for run in ("alone", "both"))
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
    norms = [np.load(tmp_path / run / "norms.npy") for run in ("alone", "both")]
    np.testing.assert_allclose(norms[1], norms[0], rtol=1e-4)
    report = scripts.report()
    assert report.proof.largest < report.proof.tolerance
    assert {change.argument: change.plan for change in report.changes} == {
        "fully_shard": "3 blocks and the rest of Net",
        "reshard_after_forward": True,
        "activation_checkpointing": "2 of 3 blocks",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param("clip.py", "whole-inside", id="the parts of a model that compares samples"),
        pytest.param("time_first.py", "whole-dim-1", id="the second dim, with states made from a weight"),
    ],
)
def test_whole_batches_are_divided_under_sharding(scripts: Any, tmp_path: Path, name: str, way: str) -> None:
    script = str(PLAIN / name)

    def launch(plan: Plan, place: RunFolder) -> Launch:
        return plan_launch(plan, script, (), place)

    proof = prove(scripts.plan(2, **FSDP), script, (), tmp_path / "proof", launch)
    assert proof.loss == way
    assert proof.largest < proof.tolerance


PINN = """
import torch

torch.manual_seed(0)
linear = torch.nn.Linear
net = torch.nn.Sequential(linear(2, 24), torch.nn.Tanh(), linear(24, 24), torch.nn.Tanh(), linear(24, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
x, t = torch.rand(32, 1, requires_grad=True), torch.rand(32, 1, requires_grad=True)


def slope(u, of):
    return torch.autograd.grad(u, of, torch.ones_like(u), create_graph=True)[0]


for step in range(8):
    optimizer.zero_grad()
    u = net(torch.cat([x, t], 1))
    loss = (slope(u, t) - slope(slope(u, x), x)).square().mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_derivatives_of_derivatives_are_refused_under_sharding_in_words(scripts: Any, tmp_path: Path) -> None:
    script = tmp_path / "pinn.py"
    script.write_text(PINN)

    def launch(plan: Plan, place: RunFolder) -> Launch:
        return plan_launch(plan, str(script), (), place)

    with pytest.raises(AdvisorError, match="create_graph=True") as refused:
        prove(scripts.plan(2, **FSDP), str(script), (), tmp_path / "proof", launch)
    assert "--only ddp" in str(refused.value.hint)

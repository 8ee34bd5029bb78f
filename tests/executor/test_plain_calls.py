"""Calls of a plain script's models divided between two ranks: results and gradients are those of one process."""

import multiprocessing
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from advisor.executor.in_process.plain_calls import Calls
from advisor.executor.in_process.plain_dims import Place, of_result
from advisor.executor.in_process.plain_losses import averaged
from advisor.executor.in_process.plain_share import Share

RANKS = 2


def work(rank: int, port_file: str, act: Callable[[], list[torch.Tensor]], answers: Any) -> None:
    from advisor.executor.in_process.plain_share import Ranks

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{port_file}", rank=rank, world_size=RANKS)
    ranks = Ranks.__new__(Ranks)
    vars(ranks).update(rank=rank, ranks=RANKS, way="whole", sums=False, calls=True, share=None, inner=None, begun=False)
    vars(ranks).update(_said=set(), _pid=0)
    streams = SimpleNamespace(draw=lambda *_: None)
    calls = Calls(ranks, streams, SimpleNamespace(adopted=1, knows=lambda parameter: True))  # type: ignore[arg-type]
    calls.steer_modules(nn.modules.module)
    calls.steer_autograd(torch.autograd)
    results = act()
    for one in results[1:]:  # gradients of parameters are averaged after a pass
        dist.all_reduce(one)
    if rank == 0:
        loss, *gradients = (one.detach() for one in results)
        answers.put([loss.tolist(), *((one / RANKS).tolist() for one in gradients)])
    dist.destroy_process_group()


def divided(tmp_path: Path, act: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    processes = [
        context.Process(target=work, args=(rank, str(tmp_path / "store"), act, answers)) for rank in range(RANKS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    return [torch.tensor(one) for one in answers.get()]


def contrastive() -> list[torch.Tensor]:
    """Compare the samples of an uneven batch; a temperature beside the model learns too."""
    torch.manual_seed(0)
    model, scale = nn.Linear(4, 3), torch.ones((), requires_grad=True)
    z = model(torch.randn(5, 4)) * scale
    loss = nn.functional.cross_entropy(z @ z.T, torch.arange(5))
    loss.backward()
    return [loss, model.weight.grad, scale.grad]  # type: ignore[list-item]


def sharded() -> list[torch.Tensor]:
    """Compare samples with a model whose weights are in shards on the ranks, block by block."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    if dist.is_initialized():
        mesh = init_device_mesh("cpu", (RANKS,))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
    z = model(torch.randn(5, 4))
    loss = nn.functional.cross_entropy(z @ z.T, torch.arange(5))
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [loss, *(one.full_tensor() if isinstance(one, DTensor) else one for one in gradients)]  # type: ignore[misc]


def penalty() -> list[torch.Tensor]:
    """Penalise a gradient with regard to the input, as a critic's is."""
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    x = torch.randn(6, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    loss = (slope.norm(dim=1) - 1).square().mean()
    loss.backward()
    return [loss, critic[0].weight.grad, critic[2].weight.grad]  # type: ignore[list-item]


def recurrent() -> list[torch.Tensor]:
    """Carry a state that has a row for each layer."""
    torch.manual_seed(0)
    lstm, state = nn.LSTM(3, 4, num_layers=3, batch_first=True), None
    for _ in range(2):
        out, state = lstm(torch.randn(6, 2, 3), state)
    loss = out.square().mean() + state[0].sum()
    loss.backward()
    return [loss, lstm.weight_hh_l0.grad]  # type: ignore[list-item]


def one_sample() -> list[torch.Tensor]:
    """Call a model with one sample, of which a part gets the steps first."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.RNN(3, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            _, state = self.rnn(x.transpose(0, 1), state)
            return self.out(state[0])  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = Reader()
    loss = model(torch.randn(6, 5, 3), torch.zeros(1, 6, 4)).square().mean()
    loss.backward()
    alone = model(torch.randn(1, 5, 3), torch.zeros(1, 1, 4)).sum()
    return [loss + alone, model.out.weight.grad]  # type: ignore[list-item]


def uneven() -> list[torch.Tensor]:
    """Draw as many numbers as the slice has samples, which one rank has more of."""

    class Jitter(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.tensor([random.random() for _ in x])[:, None]

    try:
        Jitter(4, 3)(torch.ones(5, 4))
    except RuntimeError as error:
        return [torch.tensor(float("other random numbers" in str(error)))]
    return [torch.zeros(())]


def test_ranks_that_draw_other_numbers_in_a_call_say_so(tmp_path: Path) -> None:
    assert divided(tmp_path, uneven) == [1.0]


@pytest.mark.parametrize("act", [contrastive, sharded, penalty, recurrent, one_sample])
def test_losses_and_gradients_are_those_of_one_process(tmp_path: Path, act: Callable[[], list[torch.Tensor]]) -> None:
    for one, whole in zip(divided(tmp_path, act), act(), strict=True):
        torch.testing.assert_close(one, whole.detach())


@pytest.mark.parametrize(
    ("shapes", "samples", "sliced", "place"),
    [
        pytest.param([(5, 4), (4, 4)], [5, 4], (), Place(0), id="rows of features"),
        pytest.param([(2, 3, 8), (2, 2, 8)], [3, 2], (), Place(1), id="a state of two layers"),
        pytest.param([(2, 2, 8), (2, 2, 8)], [2, 2], {(1, (2, 8))}, Place(1), id="as it was given"),
        pytest.param([(12, 5), (8, 5)], [3, 2], (), Place(0, 4), id="four rows for each sample"),
        pytest.param([(7,), (7,)], [3, 2], (), None, id="nowhere"),
    ],
)
def test_the_dim_of_the_batch_is_found(shapes: Any, samples: Any, sliced: Any, place: Place | None) -> None:
    assert of_result(shapes, samples, floating=True, second=False, sliced=sliced) == place


def test_a_sample_that_does_not_count_is_left_out_of_the_mean() -> None:
    totals = []
    ranks: Any = SimpleNamespace(
        ranks=2,
        share=Share(0, 1, whole=1, counts=False),
        factor=lambda: 0.0,
        total=lambda tensor: totals.append(float(tensor)) or tensor + 1,
    )
    averaged(ranks, nn.functional.cross_entropy)(torch.zeros(1, 3, requires_grad=True), torch.tensor([1]))
    assert totals == [0.0]

"""Two ranks, forked, go backward on slices; gradients must be those of whole batches. test_plain_gradients runs it.

Prints "equal NAME" for each case, once on each rank.
"""

import contextlib
import copy
import os
import pickle
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from advisor.executor.in_process import plain_backward, plain_gradients, plain_share

WHOLE = 7  # samples: slices are unequal
original = torch.autograd.backward
data = torch.randn(40, WHOLE, 6, generator=torch.Generator().manual_seed(1))


class World:
    """A model on slices beside the same model on whole batches."""

    def __init__(self, ranks, *models):
        self.ranks = ranks
        self.models, self.whole = models, copy.deepcopy(models)
        self.gradients = plain_gradients.Gradients(ranks, 200)
        torch.autograd.backward = original
        plain_backward.Backward(ranks, self.gradients).steer_autograd(torch.autograd)
        for model in models:
            self.gradients.add(list(model.parameters()))
        self.early = []  # for each pass: the buckets sent before its end, and all
        end = self.gradients.end

        def ended(current, loss):
            sent = current.sent
            result = end(current, loss)
            self.early.append((sent, len(current.views)))
            return result

        self.gradients.end = ended

    def share(self):
        self.ranks.share = plain_share.split(WHOLE, self.ranks.rank, 2)
        return slice(self.ranks.share.start, self.ranks.share.stop)

    def pass_(self, step, loss_of, **options):
        """Go backward once on both; `loss_of` is given a model's output for its samples."""
        self.share()
        loss = loss_of(self.models, data[step][self.share()])
        loss.backward(**options)
        expected = loss_of(self.whole, data[step])
        steered, torch.autograd.backward = torch.autograd.backward, original
        original([expected], **options)
        torch.autograd.backward = steered
        torch.testing.assert_close(loss.detach(), expected.detach())

    def same(self):
        for model, whole in zip(self.models, self.whole, strict=True):
            for (name, one), other in zip(model.named_parameters(), whole.parameters(), strict=True):
                assert (one.grad is None) == (other.grad is None), name
                if one.grad is not None:
                    torch.testing.assert_close(one.grad, other.grad, msg=lambda said, name=name: f"{name}: {said}")
                    assert one.grad.stride() == other.grad.stride(), name

    def zero(self, **options):
        for model in (*self.models, *self.whole):
            model.zero_grad(**options)


def mlp():
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 3))


def mean(models, x):
    return models[0](x).square().mean()


def overlap(ranks):
    world = World(ranks, mlp())
    kept = None
    for step in range(5):
        world.pass_(step, mean)
        world.same()
        if kept is not None:
            torch.testing.assert_close(kept[0], kept[1])  # of an earlier step, which the script may keep
        grad = world.models[0][0].weight.grad
        kept = grad, grad.clone()
        world.zero()
    assert world.early[0][0] == 0
    assert all(sent == buckets > 1 for sent, buckets in world.early[1:]), world.early


def accumulation(ranks):
    world = World(ranks, mlp())
    for step in range(6):
        world.pass_(step, mean)
        world.same()
        if step == 3:
            world.zero(set_to_none=False)
            grads = [one.grad for one in world.models[0].parameters()]
    assert all(one is mine.grad for one, mine in zip(grads, world.models[0].parameters(), strict=True))
    assert all(sent == buckets for sent, buckets in world.early[1:])


def branches(ranks):
    """Parts that one slice alone reaches, that no slice does, and that come late."""
    world = World(ranks, nn.ModuleList([nn.Linear(6, 6) for _ in range(4)]))

    def loss(step):
        def of(models, x):
            first, second, third, _ = models[0]
            y = first(x)
            low = data[step][4:]  # rank 1's slice
            if (x.shape == low.shape and torch.equal(x, low)) or len(x) == WHOLE:
                y = y + torch.cat([torch.zeros(len(x) - 3, 6), second(low[-3:])])
            if step == 3 and len(x) != 3:
                y = y + torch.cat([third(x[:2]), torch.zeros(len(x) - 2, 6)])
            return y.square().mean()

        return of

    for step in range(6):
        world.pass_(step, loss(step))
        world.same()
        if step == 1 or step > 3:
            world.zero()


def adversaries(ranks):
    """Two models that go backward at one place."""
    world = World(ranks, nn.Linear(6, 6), mlp())

    def one(models, x):
        return models[1](models[0](x).detach()).square().mean()

    def both(models, x):
        return (models[1](models[0](x)) - 1).square().mean()

    for step, loss in enumerate([one, both, one, one, both, both, one]):
        world.pass_(step, loss)
        world.same()
        if step % 2:
            world.zero()


def retained(ranks):
    world = World(ranks, mlp())
    for step in range(3):
        losses = world.models[0](data[step][world.share()]).square().mean(), mean(world.whole, data[step])
        for _ in range(2):
            losses[0].backward(retain_graph=True)
            original([losses[1]], retain_graph=True)
        world.same()


def checkpoints(ranks):
    world = World(ranks, mlp())

    def loss(models, x):
        x = x.clone().requires_grad_()
        hidden = checkpoint(models[0][:4], x, use_reentrant=True)
        return models[0][4](checkpoint(models[0][2:4], hidden, use_reentrant=True)).square().mean()

    for step in range(4):
        world.pass_(step, loss)
        world.same()


def frozen(ranks):
    world = World(ranks, mlp())
    for step in range(6):
        for model in (*world.models, *world.whole):
            model[0].requires_grad_(step in (1, 2, 5))
            model[4].requires_grad_(step != 3)
        world.zero()
        world.pass_(step, mean)
        world.same()


def layouts(ranks):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(6, 4)
            self.conv = nn.Conv2d(2, 5, 3).to(memory_format=torch.channels_last)
            self.decoder = nn.Parameter(torch.randn(5, 6).t())  # not contiguous
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            image = self.encoder(x).view(-1, 2, 1, 2).repeat(1, 1, 4, 2)
            return (image.contiguous(memory_format=torch.channels_last) * self.scale).pipe(self.conv)

    torch.Tensor.pipe = lambda x, conv: conv(x)
    world = World(ranks, Net())

    def loss(models, x):
        y = models[0](x).mean(dim=(2, 3))
        return (y @ models[0].decoder.t()).square().mean() + (models[0].encoder(x) @ models[0].encoder.weight).mean()

    for step in range(4):
        world.pass_(step, loss)
        world.same()
        world.zero()


def derivatives(ranks):
    """autograd.grad leaves gradients alone; what it was of counts as ever."""
    world = World(ranks, mlp())

    def loss(models, x):
        x = x.clone().requires_grad_()
        y = models[0](x).square().mean()
        (slope,) = torch.autograd.grad(models[0](x).square().sum(), x, create_graph=True)
        return y + slope.square().mean()

    for step in range(3):
        world.pass_(step, loss)
        world.same()


def refusals(ranks):
    for model, share, options, why in (
        (mlp(), None, {}, "uses no batch"),
        (mlp(), 1, {"create_graph": True}, "create_graph"),
        (nn.EmbeddingBag(6, 2, sparse=True), 1, {}, "sparse"),
    ):
        world = World(ranks, model)
        world.share()
        ranks.share = share and ranks.share
        x = data[0] if isinstance(model, nn.Sequential) else torch.tensor([[1, 2]])
        with contextlib.suppress(RuntimeError):
            model(x).sum().backward(**options)
            raise SystemExit(f"not refused: {why}")
        try:
            model(x).sum().backward(**options)
        except RuntimeError as error:
            assert why in str(error), error


def copies(ranks):
    world = World(ranks, mlp())
    world.pass_(0, mean)
    for other in (copy.deepcopy(world.models[0]), pickle.loads(pickle.dumps(world.models[0]))):
        assert not any(one._post_accumulate_grad_hooks or one._backward_hooks for one in other.parameters())
        assert all(vars(one) == {} for one in other.parameters())


CASES = (
    overlap,
    accumulation,
    branches,
    adversaries,
    retained,
    checkpoints,
    frozen,
    layouts,
    derivatives,
    copies,
    refusals,
)


def main():
    os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1]}
    child = os.fork()
    os.environ["RANK"] = "0" if child else "1"
    ranks = plain_share.Ranks("cpu", {"seed": 0})
    ranks.start()
    ranks.begun = True
    torch.set_num_threads(1)
    for case in CASES:
        if not sys.argv[2:] or case.__name__ in sys.argv[2:]:
            torch.manual_seed(0)
            case(ranks)
            os.write(1, f"equal {case.__name__}\n".encode())
    torch.distributed.destroy_process_group()
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


main()

"""A plain script, written for one process, trained on all ranks with the same result: what is changed, and where.

Unlike other hooks of ours none of these fails open: without one of them the ranks would train something else.
"""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from advisor.executor.in_process import plain_files, plain_losses, plain_proof, plain_random, plain_reads
from advisor.executor.in_process.plain_calls import Calls
from advisor.executor.in_process.plain_loader import Loaders
from advisor.executor.in_process.plain_random import Streams
from advisor.executor.in_process.plain_replicas import Replicas
from advisor.executor.in_process.plain_share import Ranks

ROUNDING = 1.2e-7  # of fp32, relative
Act = Callable[[Any], None]


def acts(
    plan: dict[str, Any], given: dict[str, Any], folder: Path, note: Callable[..., None], observe: Callable[[Any], None]
) -> Iterator[tuple[str, Act]]:
    """Name the modules that are changed, and how. `given` says how losses and random numbers are dealt with."""
    ranks = Ranks(plan["launcher"]["device"], given)
    streams = Streams(ranks)
    replicas = Replicas(ranks, plan.get("bucket_cap_mb"), observe)
    yield "torch.optim.optimizer", streams.seed_torch
    yield "numpy.random", streams.seed_numpy
    yield "torch.optim.optimizer", replicas.steer_optimizers
    if ranks.calls and ranks.ranks > 1:
        calls = Calls(ranks, streams, replicas)
        yield "torch.nn.modules.module", calls.steer_modules
        yield "torch.autograd", calls.steer_autograd
    yield "torch.autograd", replicas.steer_autograd
    yield "torch.amp.grad_scaler", replicas.steer_scaler
    yield "torch.autograd.grad_mode", replicas.steer_grad_mode
    if not ranks.calls:
        loaders = Loaders(ranks, streams, replicas)
        yield "torch.utils.data.dataloader", loaders.steer
        if ranks.matched:
            yield "torch.utils.data._utils.fetch", loaders.steer_fetch
    yield "torch._tensor", lambda module: plain_reads.steer(ranks, module.Tensor)
    yield "torch.nn.functional", functools.partial(plain_losses.steer, ranks)
    yield "torch._dynamo", plain_losses.keep_out_of_graphs
    if ranks.rank or given.get("proof"):
        shadow = plain_files.Shadow(folder)
        shadow.install()
        yield from shadow.acts()
    if ranks.matched:
        yield "torch.nn.functional", plain_proof.without_dropout
        yield "torch.utils.data.dataloader", plain_proof.one_process_loads
        if ranks.ranks > 1:
            yield "torch.optim.optimizer", lambda _: plain_random.match(ranks)
    if given.get("proof"):
        proof = plain_proof.Proof(ranks, note)
        replicas.on_loss = proof.loss
        yield "torch.optim.optimizer", proof.steer_optimizers
        if given.get("nudge"):
            yield "torch.optim.optimizer", functools.partial(plain_proof.nudge, ROUNDING)
        yield "torch.amp.autocast_mode", plain_proof.without_autocast
        yield "torch._dynamo.config", plain_proof.without_compilation
    else:
        replicas.on_loss = functools.partial(_note_losses, note, [])


def _note_losses(note: Callable[..., None], seen: list[int], loss: Any) -> None:
    """Note the loss over all ranks of the first backward pass and of each 2, 4, 8, ... passes."""
    seen.append(1)
    count = len(seen)
    if count & (count - 1) == 0:
        note("loss", backward=count, loss=float(loss.detach().double().reshape(-1)[0]))

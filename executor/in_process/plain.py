"""A plain script, written for one process, trained on all ranks with the same result: what is changed, and where.

Unlike other hooks of ours none of these fails open: without one of them the ranks would train something else.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from advisor.executor.in_process import (
    plain_doors,
    plain_files,
    plain_losses,
    plain_proof,
    plain_random,
    plain_reads,
    plain_recompute,
    plain_whole,
)
from advisor.executor.in_process.plain_backward import Backward
from advisor.executor.in_process.plain_buckets import BUCKET
from advisor.executor.in_process.plain_calls import Calls
from advisor.executor.in_process.plain_gradients import Gradients
from advisor.executor.in_process.plain_loader import Loaders
from advisor.executor.in_process.plain_random import Streams
from advisor.executor.in_process.plain_replicas import Replicas
from advisor.executor.in_process.plain_shards import Shards
from advisor.executor.in_process.plain_share import Ranks

Act = Callable[[Any], None]


def acts(
    plan: dict[str, Any], given: dict[str, Any], folder: Path, note: Callable[..., None], observe: Callable[[Any], None]
) -> Iterator[tuple[str, Act]]:
    """Name the modules that are changed, and how. `given` says how losses and random numbers are dealt with."""
    ranks = Ranks(plan["launcher"]["device"], given)
    streams = Streams(ranks)
    bucket_mb = plan.get("bucket_cap_mb")
    gradients = Gradients(ranks, BUCKET if bucket_mb is None else int(bucket_mb * 2**20))
    replicas, backward = Replicas(ranks, gradients, observe), Backward(ranks, gradients)
    if plan["activation_checkpointing"] != "none":
        replicas.prepare = functools.partial(plain_recompute.recompute, plan["activation_checkpointing"])
        yield "torch.nn.modules.module", plain_recompute.steer_modules
    if plan["strategy"] in ("fsdp", "hsdp") and ranks.ranks > 1:
        replicas.shards = backward.shards = Shards(plan, ranks, note)
        gradients.divisor = ranks.ranks
        yield from _shard(replicas.shards)
    yield "torch.optim.optimizer", streams.seed_torch
    yield "numpy.random", streams.seed_numpy
    yield "torch.optim.optimizer", replicas.steer_optimizers
    if replicas.shards is not None:  # after it, so that new groups hold shards before they are looked at
        yield "torch.optim.optimizer", replicas.shards.steer_optimizers
    if ranks.calls and ranks.ranks > 1:
        calls = Calls(ranks, streams, replicas)
        yield "torch.nn.modules.module", calls.steer_modules
        yield "torch.autograd", calls.steer_autograd
    yield "torch.autograd", backward.steer_autograd
    yield "torch.amp.grad_scaler", backward.steer_scaler
    yield "torch.autograd.grad_mode", backward.steer_grad_mode
    if not ranks.calls:
        loaders = Loaders(ranks, streams, replicas, backward)
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
        yield from _prove(ranks, backward, note, nudge=bool(given.get("nudge")))
    else:
        backward.on_loss = functools.partial(_note_losses, note, [])


def _shard(shards: Shards) -> Iterator[tuple[str, Act]]:
    yield "torch.autograd", shards.steer_autograd
    yield "torch.nn.modules.module", shards.steer_modules
    yield "torch.nn.utils.clip_grad", plain_whole.steer_clipping
    yield "torch._dynamo.decorators", plain_doors.keep_out_compiler


def _prove(ranks: Ranks, backward: Backward, note: Callable[..., None], *, nudge: bool) -> Iterator[tuple[str, Act]]:
    proof = plain_proof.Proof(ranks, note)
    backward.on_loss = proof.loss
    yield "torch.optim.optimizer", proof.steer_optimizers
    if nudge:
        yield "torch.optim.optimizer", plain_proof.nudge
    yield "torch.amp.autocast_mode", plain_proof.without_autocast
    yield "torch._dynamo.config", plain_proof.without_compilation


def leave(recorder: Any) -> None:
    """End the process group, which the script knows nothing of; after an error the other ranks may be gone."""
    distributed = sys.modules.get("torch.distributed")
    if recorder.exit_code == 0 and distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()


def _note_losses(note: Callable[..., None], seen: list[int], loss: Any) -> None:
    """Note the loss over all ranks of the first backward pass and of each 2, 4, 8, ... passes."""
    seen.append(1)
    count = len(seen)
    if count & (count - 1) == 0:
        note("loss", backward=count, loss=float(loss.detach().double().reshape(-1)[0]))

"""Train a tiny model under a strategy, with checkpoints; rank 0 prints the mean loss of each step as one JSON list.

train_and_save.py FOLDER STRATEGY FIRST LAST SAVE_AT [OPTION...]   (STRATEGY: plain, ddp, fsdp, compiled)
"""

import contextlib
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from advisor import checkpoint

GLOBAL_BATCH = 8


def main() -> None:
    folder, strategy, *numbers = sys.argv[1:6]
    first, last, save_at = map(int, numbers)
    options = set(sys.argv[6:])
    if strategy != "plain":
        dist.init_process_group("gloo")
    world = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(first)  # a model that resumes starts from other weights
    model: nn.Module = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16).eval(), nn.Tanh(), nn.Linear(16, 3))
    if strategy == "fsdp":
        fully_shard(model[0])
        fully_shard(model)
    elif strategy in ("ddp", "compiled"):
        model = DistributedDataParallel(model)
        if strategy == "compiled":
            model = torch.compile(model, backend="eager")
    groups = [{"params": [p for p in model.parameters() if p.dim() == d], "lr": lr} for d, lr in ((1, 1e-2), (2, 3e-2))]
    optimizer = torch.optim.AdamW(groups)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    numbers = torch.randn(40, 9, generator=torch.Generator().manual_seed(7))
    data = TensorDataset(numbers[:, :6], numbers[:, 6:])
    sampler = DistributedSampler(data, world, rank)
    batches = checkpoint.Batches(DataLoader(data, GLOBAL_BATCH // world, sampler=sampler))
    extra = {"best": 0.5}
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "sampler": batches, "extra": extra}
    step = 0
    if first:
        extra["best"] = 9.0
        step = checkpoint.load(folder, **state)
        assert (step, extra) == (first, {"best": 0.5}), (step, extra)
    losses = []
    while step < last:
        for inputs, targets in batches:
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            step += 1
            mean = loss.detach().clone()
            if world > 1:
                dist.all_reduce(mean)
            losses.append(mean.item() / world)
            if step == save_at:
                how = {"sharded": True} if "sharded" in options else {}
                checkpoint.save(folder, step, **state, **how, asynchronous="asynchronous" in options)
            if step == last:
                break
    checkpoint.wait()
    if rank == 0:
        sys.stdout.write(json.dumps(losses))
    if dist.is_initialized():
        with contextlib.suppress(Exception):
            dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    main()

"""Train without a plan, then under PLAN on torch's "meta" device, where weights are lost: trains_on_meta.py PLAN

What the plan holds back goes to the CPU in the end, so that both trainings can be compared.
"""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from advisor.executor.in_process import hold, hooks, sharded

sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures" / "scripts" / "kinds"))
from parts import VOCAB, Model, batch, loss_of


def train(device: str) -> tuple[list[float], dict[str, Any]]:
    """Return losses and the whole states of a model that is wrapped, one that never is, and a copy."""
    rank = dist.get_rank()
    torch.manual_seed(rank)  # all get rank 0's weights
    model = Model().to(device, torch.float64)
    torch.manual_seed(7)
    critic = nn.Linear(VOCAB, 1).double().to(device)  # trained on each rank by itself
    optimizer = torch.optim.AdamW([*model.parameters(), *critic.parameters()], lr=0.01)
    before = copy.deepcopy(model)
    replica = DistributedDataParallel(model)
    losses = []
    for step in range(3):
        tokens, targets = batch(step, rank)
        told = critic(replica(tokens).detach()).square().mean()  # first: each call takes rank 0's buffers
        loss = loss_of(replica, tokens, targets) + told
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    losses.append(loss_of(before, *batch(9, rank)).item())
    return losses, {"model": model.state_dict(), "critic": critic.state_dict()}


def main() -> None:
    dist.init_process_group("gloo")
    losses, states = train("cpu")
    release, plan, noted = hold.release, json.loads(sys.argv[1]), []
    hold.release = lambda module: torch.device("cpu") if release(module) is not None else None
    hold.Hold("meta", hooks.failing_open).steer_modules(nn.modules.module)
    sharding = sharded.Sharding(plan, lambda _, **fields: noted.append(fields["given"]))
    sharded.steer(sharding, lambda _: None, nn.parallel.distributed)
    again, held = train("meta")
    torch.testing.assert_close(again, losses)
    torch.testing.assert_close(held, states)
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps(noted))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

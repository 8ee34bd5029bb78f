"""Batch normalisation over the ranks of a plain script, beside a rank's own and torch.nn.SyncBatchNorm.

batch_norm.py ROWS.jsonl [--model resnet50] [--batch 32] [--bf16] [--device cuda]: forward and backward passes of a
torchvision model on two ranks, the three in turns. Milliseconds of a step in each round, and bytes above the model's.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import zoo
from torch import nn
from torch.nn import functional

from advisor.executor.forked import free_port
from advisor.executor.in_process import plain_norm, plain_share

RANKS = 2
WARM_UP, STEPS = 3, 5
Norm = Callable[..., torch.Tensor]
own = functional.batch_norm


@contextmanager
def normalised_by(batch_norm: Norm) -> Iterator[None]:
    functional.batch_norm = batch_norm
    try:
        yield
    finally:
        functional.batch_norm = own


def step(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, bf16: bool) -> None:
    with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
        loss = functional.cross_entropy(model(images), labels)
    loss.backward()
    model.zero_grad()


def timed(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, bf16: bool) -> tuple[float, int]:
    """Return seconds of a step, and the bytes allocated at its peak beyond those before."""
    cuda = images.is_cuda
    before = torch.cuda.memory_allocated() if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    for number in range(WARM_UP + STEPS):
        if number == WARM_UP:
            if cuda:
                torch.cuda.synchronize()
            torch.distributed.barrier()
            began = time.perf_counter()
        step(model, images, labels, bf16=bf16)
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / STEPS, torch.cuda.max_memory_allocated() - before if cuda else 0


def measure(ranks: plain_share.Ranks, args: argparse.Namespace) -> dict[str, Any]:
    device = torch.device(args.device)

    def made() -> nn.Module:
        torch.manual_seed(0)
        return getattr(zoo, args.model)().to(device)

    images = torch.rand(args.batch, 3, args.pixels, args.pixels, device=device)
    labels = torch.randint(1000, (args.batch,), device=device)
    ranks.share = plain_share.split(RANKS * args.batch, ranks.rank, RANKS)
    kinds: dict[str, tuple[nn.Module, Norm]] = {
        "a rank's own": (made(), own),
        "over ranks": (made(), plain_norm.normalised(ranks, own)),
    }
    if device.type == "cuda":  # it has no kernels for CPUs
        kinds["SyncBatchNorm"] = nn.SyncBatchNorm.convert_sync_batchnorm(made(), ranks.inner), own
    found: dict[str, Any] = {kind: {"step_ms": [], "bytes": 0} for kind in kinds}
    for _ in range(args.rounds):
        for kind, (model, batch_norm) in kinds.items():
            with normalised_by(batch_norm):
                seconds, held = timed(model, images, labels, bf16=args.bf16)
            found[kind]["step_ms"].append(round(1e3 * seconds, 2))
            found[kind]["bytes"] = held
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bf16", action="store_true", help="autocast")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    args = parser.parse_args()
    os.environ |= {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    child = os.fork()
    os.environ |= {"RANK": "0" if child else "1", "LOCAL_RANK": "0"}
    ranks = plain_share.Ranks(args.device, {"seed": 0})
    ranks.start()
    found = measure(ranks, args)
    torch.distributed.destroy_process_group()
    if not child:
        return
    row = {"date": datetime.now(UTC).date().isoformat(), "torch": torch.__version__, "device": args.device}
    row |= {"model": args.model, "batch": args.batch, "bf16": args.bf16, "pixels": args.pixels, "found": found}
    with args.rows.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row))
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


main()

"""Train a small GPT on Shakespeare, character by character: an ordinary script with DistributedDataParallel.

torchrun --nproc-per-node 2 examples/train_gpt.py     # NCCL on GPUs, gloo without
python examples/train_gpt.py                          # one process
advisor apply examples/train_gpt.py                   # as this machine does it best
"""

import argparse
import itertools
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler

TEXT = Path(__file__).parent / "shakespeare.txt"


class Windows(Dataset):
    """Consecutive stretches of `seq` characters, with the same shifted by one as targets."""

    def __init__(self, tokens: torch.Tensor, seq: int) -> None:
        self.tokens, self.seq = tokens, seq

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.seq

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.tokens[i * self.seq : (i + 1) * self.seq + 1]
        return window[:-1], window[1:]


def read_text(seq: int) -> tuple[Windows, Windows, int]:
    """Return training samples, held-out samples (the last tenth of the text) and the number of different characters."""
    text = TEXT.read_text()
    number = {character: i for i, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([number[character] for character in text])
    split = len(tokens) * 9 // 10
    return Windows(tokens[:split], seq), Windows(tokens[split:], seq), len(number)


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, hidden = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, seq, 3, self.heads, hidden // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attention = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).reshape(batch, seq, hidden))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocab: int, seq: int, layers: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(vocab, hidden), nn.Embedding(seq, hidden)
        self.blocks = nn.Sequential(*(Block(hidden, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocab, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.position.weight[: tokens.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small GPT on Shakespeare.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="samples per process and step")
    parser.add_argument("--seq", type=int, default=64, help="characters per sample")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eval-every", type=int, default=50)
    parser.add_argument("--out", type=Path, help="write checkpoints to this file, and resume from it if it exists")
    return parser.parse_args()


def batches(loader: DataLoader, sampler: DistributedSampler, step: int) -> Iterator[list[torch.Tensor]]:
    """Yield training batches for ever, from the one that follows `step` on."""
    while True:
        epoch, done = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for batch in itertools.islice(loader, done, None):
            yield batch
            step += 1


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Rise for the first tenth of the steps, then fall along a cosine to a tenth of the peak."""
    warm_up = max(1, steps // 10)
    if step < warm_up:
        return peak * (step + 1) / warm_up
    return peak * (0.55 + 0.45 * math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def mean_over_ranks(total: torch.Tensor) -> float:
    """Divide the sums over all ranks: `total` holds [sum of losses, number of samples]."""
    if dist.is_initialized():
        dist.all_reduce(total)
    return (total[0] / total[1]).item()


@torch.no_grad()
def evaluate(model: GPT, loader: DataLoader, device: torch.device, autocast: torch.autocast) -> float:
    """Return the mean loss over the validation text, of which each rank reads its own part."""
    model.eval()
    total = torch.zeros(2, device=device)
    for tokens, targets in loader:
        with autocast:
            loss = model(tokens.to(device), targets.to(device))
        total += torch.stack([loss * len(tokens), torch.tensor(float(len(tokens)), device=device)])
    model.train()
    return mean_over_ranks(total)


def save(path: Path, state: dict) -> None:
    """Write a checkpoint that is never seen half written."""
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(path)


def main() -> None:
    args = parse_args()
    distributed = "RANK" in os.environ  # set by torchrun
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if distributed:
        backend, device_id = ("nccl", device) if device.type == "cuda" else ("gloo", None)
        dist.init_process_group(backend, device_id=device_id)
    torch.manual_seed(args.seed)

    train, held_out, vocab = read_text(args.seq)
    sampler = DistributedSampler(train, world, rank, seed=args.seed)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    even = len(held_out) // world * world  # all ranks evaluate as many batches, as sharded models need it
    held_out_loader = DataLoader(Subset(held_out, range(rank, even, world)), args.batch_size)

    model = GPT(vocab, args.seq, args.layers, args.hidden, args.heads).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    start = 0
    if args.out and args.out.exists():
        state = torch.load(args.out, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    replica: nn.Module = model
    if distributed:
        replica = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")

    began = time.perf_counter()
    for step, (inputs, targets) in zip(range(start, args.steps), batches(loader, sampler, start), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr)
        with autocast:
            loss = replica(inputs.to(device), targets.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        done = step + 1
        if done % args.eval_every and done != args.steps:
            continue
        train_loss = mean_over_ranks(torch.stack([loss.detach(), torch.ones_like(loss)]))
        held_out_loss = evaluate(model, held_out_loader, device, autocast)
        # On every rank: where the model is sharded, all of them must take part in gathering its state.
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": done} if args.out else {}
        if rank == 0:
            seconds = time.perf_counter() - began
            print(f"step {done}: loss {train_loss:.3f}, held out {held_out_loss:.3f}, {seconds:.1f} s", flush=True)
            if args.out:
                save(args.out, state)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

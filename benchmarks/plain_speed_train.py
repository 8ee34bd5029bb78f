"""The scripts that `plain_speed.py` times: one for one process, and the same with DistributedDataParallel written in.

    plain_speed_train.py MODEL DEVICE STEPS [ddp]

The last line of the output is JSON: the seconds of a step by the clock and of all threads on the host, as medians over
windows of steps. `tiny` takes what the host
does for a step, `gpt` what gradients cost on the way.
"""

import contextlib
import itertools
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

WINDOWS, WARM_UP = 10, 10  # windows of STEPS / WINDOWS steps, after so many that are not timed
SIZES = {  # of a GPT: layers, width, tokens, samples of a batch
    "cpu": (2, 128, 32, 8),
    "cuda": (12, 768, 512, 32),
}


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, tokens: int, words: int = 4096) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        block = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        hidden = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        out: torch.Tensor = self.head(self.blocks(hidden, mask=mask, is_causal=True))
        return out


def build(name: str, device: str) -> tuple[nn.Module, TensorDataset, int]:
    """Return a model, its data and the samples of a batch."""
    if name == "tiny":
        model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(24)), nn.Linear(64, 4))
        return model, TensorDataset(torch.randn(4096, 64), torch.randn(4096, 4)), 64
    layers, width, tokens, samples = SIZES[device]
    words = torch.randint(0, 4096, (64 * samples, tokens + 1))
    return Gpt(layers, width, tokens), TensorDataset(words[:, :-1], words[:, 1:]), samples


def loss_of(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (
        functional.mse_loss(out, y)
        if y.is_floating_point()
        else functional.cross_entropy(out.flatten(0, 1), y.flatten())
    )


def main() -> None:
    name, device, steps, by_hand = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:] == ["ddp"]
    torch.manual_seed(0)
    model, data, samples = build(name, device)
    model.to(device)
    if by_hand:
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DistributedSampler

        torch.distributed.init_process_group("gloo" if device == "cpu" else "nccl")
        model = DistributedDataParallel(model)
        sampler: DistributedSampler[object] = DistributedSampler(data)
        loader = DataLoader(data, batch_size=samples // torch.distributed.get_world_size(), sampler=sampler)
    else:
        loader = DataLoader(data, batch_size=samples, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    half = torch.autocast("cuda", torch.bfloat16) if device == "cuda" else contextlib.nullcontext()
    marks: list[tuple[float, float]] = []
    step, each = 0, max(1, steps // WINDOWS)
    while len(marks) <= WINDOWS:
        model.train()
        for x, y in loader:
            if step >= WARM_UP and (step - WARM_UP) % each == 0:
                if device == "cuda":
                    torch.cuda.synchronize()
                marks.append((time.perf_counter(), time.process_time()))
                if len(marks) > WINDOWS:
                    break
            with half:
                loss = loss_of(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            step += 1
    wall, host = ([(b[i] - a[i]) / each for a, b in itertools.pairwise(marks)] for i in range(2))
    answer = {"step_seconds": statistics.median(wall), "host_seconds": statistics.median(host), "windows": wall}
    print(json.dumps(answer), flush=True)
    if by_hand:
        torch.distributed.destroy_process_group()


main()

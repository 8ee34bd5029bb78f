"""Train one of several models on random data under DistributedDataParallel, as many scripts do. For `plans.py`.

train_model.py MODEL [options]: gpt-LAYERSxHIDDEN (that of examples/train_gpt.py), llama-LAYERSxHIDDEN (Transformers), a
BERT, GPT-2 or Llama of zoo.py (bert_base with --seq 512) or a name in torchvision.models. Prints one JSON object:
losses over all ranks, seconds of a step, the weights' norms.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import zoo
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

VOCAB = 32_000
DRAWN = 30_000  # the words that batches have: fewer than any model knows
WARM_UP = 3  # steps that are not timed


class WithLoss(nn.Module):
    """A model and its loss in one module, as the wrapped forward pass should hold both."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        output = self.model(inputs)
        scores = getattr(output, "logits", output)
        return cross_entropy(scores.flatten(0, -2).float(), targets.flatten())


def is_language_model(name: str) -> bool:
    return name.startswith(("gpt-", "llama-")) or in_zoo(name)


def in_zoo(name: str) -> bool:
    return tuple(name.partition("_")[::2]) in zoo.SIZES


def architecture(name: str, seq: int) -> dict[str, int] | None:
    """Return the sizes of a language model as rows of measurements name them; None where the name alone tells them."""
    if not is_language_model(name) or in_zoo(name):
        return None
    family, _, sizes = name.partition("-")
    layers, hidden = map(int, sizes.split("x"))
    arch = {"layers": layers, "hidden": hidden, "heads": hidden // 64, "vocab": VOCAB, "seq": seq}
    return arch if family == "gpt" else arch | {"kv_heads": hidden // 256, "ffn": hidden * 11 // 4}


def builder(name: str, seq: int) -> Callable[[], nn.Module]:
    """Import what the model needs, and return what builds it."""
    arch = architecture(name, seq)
    if in_zoo(name):
        build = getattr(zoo, name)
        return lambda: WithLoss(build())
    if arch is None:
        import torchvision

        return lambda: WithLoss(torchvision.models.get_model(name))
    if name.startswith("gpt-"):
        sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
        from train_gpt import GPT

        return lambda: GPT(VOCAB, seq, arch["layers"], arch["hidden"], arch["heads"])
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=arch["hidden"],
        intermediate_size=arch["ffn"],
        num_hidden_layers=arch["layers"],
        num_attention_heads=arch["heads"],
        num_key_value_heads=arch["kv_heads"],
    )
    return lambda: WithLoss(LlamaForCausalLM(config))


def parameters(name: str, seq: int) -> int:
    """Count a model's parameters without making them."""
    with torch.device("meta"):
        model = builder(name, seq)()
    return sum(parameter.numel() for parameter in model.parameters())


def batches(args: argparse.Namespace, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of this rank, other ones in each pass."""
    generator = torch.Generator().manual_seed(1000 + int(os.environ["RANK"]))
    while True:
        if is_language_model(args.model):
            tokens = torch.randint(DRAWN, (args.batch, args.seq + 1), generator=generator)
            yield tokens[:, :-1].to(device), tokens[:, 1:].to(device)
        else:
            images = torch.rand(args.batch, 3, 224, 224, generator=generator)
            yield images.to(device), torch.randint(1000, (args.batch,), generator=generator).to(device)


def parse_args(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a model on random data.")
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--bf16", action="store_true", help="autocast")
    parser.add_argument("--first-gpu", action="store_true", help='put all on "cuda:0"')
    parser.add_argument("--wait-for", type=Path, help="begin once this file is there, all imports done")
    parser.add_argument("--done", type=Path, help="make this file when training has ended")
    return parser.parse_args(words)


def main() -> None:
    args = parse_args()
    build = builder(args.model, args.seq)
    while args.wait_for and not args.wait_for.exists():
        time.sleep(0.02)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda:0" if args.first_gpu else f"cuda:{os.environ['LOCAL_RANK']}")
        torch.cuda.set_device(device)
    dist.init_process_group(device_id=device if device.type == "cuda" else None)
    torch.manual_seed(0)
    with device:  # billions of weights take minutes on a CPU
        model = build()
    model = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    data = batches(args, device)
    losses = []
    for step in range(args.steps):
        if step == WARM_UP:
            synchronize(device)
            began = time.perf_counter()
        total = torch.zeros((), device=device)
        for micro in range(args.accumulate):
            last = micro == args.accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
                    loss = model(*next(data)) / args.accumulate
                loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    synchronize(device)
    seconds = (time.perf_counter() - began) / (args.steps - WARM_UP)
    means = torch.stack(losses)
    dist.all_reduce(means)
    state = model.state_dict()
    norms = [float(value.double().norm()) for value in state.values() if value.is_floating_point()]
    if dist.get_rank() == 0:
        gpu = torch.cuda.get_device_name(0) if device.type == "cuda" else "CPU"
        seen = {"gpu": gpu, "visible": torch.cuda.device_count(), "torch": torch.__version__}
        means = (means / dist.get_world_size()).tolist()
        print(json.dumps({"losses": means, "seconds": seconds, "norms": norms, **seen}), flush=True)
        if args.done:
            args.done.touch()
    dist.destroy_process_group()


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()

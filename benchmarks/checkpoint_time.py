"""Seconds that saving a state of 200 MB takes: this project's checkpoints beside torch.save, in turn.

Run: python benchmarks/checkpoint_time.py [ROUNDS]. `until it returns` is how long training stands still. The last line
is a JSON object of medians in seconds.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from advisor import checkpoint

PARAMETERS = 50_000_000  # 200 MB in fp32


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    model = nn.Linear(5_000, PARAMETERS // 5_000, bias=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def plain() -> None:
            torch.save(model.state_dict(), folder / "plain.pt")

        def synced() -> None:
            plain()
            with (folder / "plain.pt").open("rb") as file:
                os.fsync(file.fileno())

        def ours(**how: bool) -> Callable[[], None]:
            return lambda: checkpoint.save(folder / "ours", 1, model=model, keep=1, **how)

        acts = {
            "torch.save": plain,
            "torch.save and fsync": synced,
            "one file": ours(),
            "shards": ours(sharded=True),
            "one file, asynchronous, until it returns": ours(asynchronous=True),
            "shards, asynchronous, until it returns": ours(sharded=True, asynchronous=True),
        }
        times: dict[str, list[float]] = {what: [] for what in acts}
        for number in range(rounds + 1):
            for what, act in acts.items():
                os.sync()  # none pays for what another has left
                start = time.perf_counter()
                act()
                if number:  # the first round warms up
                    times[what].append(time.perf_counter() - start)
                checkpoint.wait()
    medians = {what: statistics.median(some) for what, some in times.items()}
    for what, some in times.items():
        ratio = statistics.median(a / b for a, b in zip(some, times["torch.save and fsync"], strict=True))
        print(f"{what:42}{medians[what]:7.2f} s ({min(some):.2f}-{max(some):.2f}), {ratio:.2f} of torch.save and fsync")
    print(json.dumps({what: round(median, 3) for what, median in medians.items()}))


if __name__ == "__main__":
    main()

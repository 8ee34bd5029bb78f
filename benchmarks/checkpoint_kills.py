"""Kill processes with SIGKILL while they save checkpoints; look whether anything is ever lost.

Run: python benchmarks/checkpoint_kills.py KILLS [RANKS] [SEED]. Each trial starts the ranks (gloo), lets them load and
then save without a pause, kills all of them, or one and the rest a moment later, at a random time, and loads in another
process: that must give a whole checkpoint, not older than the last save that had returned. Trials take turns in writing
one file or shards, at once or asynchronously. The last line is a JSON object.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from advisor import checkpoint

HIDDEN = 512  # 3 x 4 x 512 x 512 bytes with AdamW: 3 MB
LONGEST = 0.8  # seconds from the first save to the kill


def objects() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(HIDDEN, HIDDEN, bias=False)
    return model, torch.optim.AdamW(model.parameters())


def values(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    state = optimizer.state[model.weight]
    return [model.weight.data, state["exp_avg"], state["exp_avg_sq"]]


def save_for_ever(folder: Path, scratch: Path, rank: int, ranks: int, how: dict[str, bool]) -> None:
    """Save checkpoints in which every number is the step, and note each step whose save has returned."""
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=rank, world_size=ranks)
    model, optimizer = objects()
    model.weight.sum().backward()
    optimizer.step()
    step = checkpoint.load(folder, model=model, optimizer=optimizer) or 0
    with (scratch / "done").open("a", buffering=1) as notes:
        notes.write("0\n")
        while True:
            step += 1
            for tensor in values(model, optimizer):
                tensor.fill_(step)
            checkpoint.save(folder, step, model=model, optimizer=optimizer, **how)
            complete = step - how["asynchronous"]  # this one may be under way; the one before is complete
            if rank == 0:
                notes.write(f"{complete}\n")


def start(act: Callable[[], None]) -> int:
    """Run an act in a process of its own and return its id: forked, since importing torch takes seconds."""
    child = os.fork()
    if child:
        return child
    try:
        act()
    except BaseException as error:
        sys.stderr.write(f"{error}\n")
    os._exit(1)


def kill_one(folder: Path, ranks: int, number: int, chance: random.Random) -> tuple[bool, int]:
    """Return whether a save was cut, and the last step whose save had returned."""
    how = {"sharded": bool(number & 1), "asynchronous": bool(number & 2)}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        done = scratch / "done"
        children = [
            start(lambda rank=rank: save_for_ever(folder, scratch, rank, ranks, how))  # type: ignore[misc]
            for rank in range(ranks)
        ]
        try:
            end = time.monotonic() + 60
            while not done.exists() or done.read_text().count("0\n") < ranks:
                if time.monotonic() > end:
                    raise SystemExit("the ranks did not start")
                time.sleep(0.005)
            time.sleep(chance.uniform(0, LONGEST))
            chance.shuffle(children)
            os.kill(children[0], signal.SIGKILL)
            time.sleep(chance.choice([0, 0, 0.05]))
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        completed = max(map(int, done.read_text().split()))
    return any(path.name.endswith(".partial") for path in folder.iterdir()), completed


def judge(folder: Path, completed: int) -> str | None:
    """Say what is wrong with what loads; None where nothing is."""
    model, optimizer = objects()
    try:
        step = checkpoint.load(folder, model=model, optimizer=optimizer) or 0
    except checkpoint.CheckpointError as error:
        return str(error)
    if step < completed:
        return f"step {step} loaded, step {completed} was complete"
    if step and any((tensor != step).any() for tensor in values(model, optimizer)):
        return f"step {step} holds other numbers"
    return None


def main() -> None:
    kills, ranks, seed = (int(word) for word in (*sys.argv[1:], *("100", "1", "0")[len(sys.argv) - 1 :]))
    torch.set_num_threads(1)
    chance = random.Random(seed)
    cut = lost = 0
    last = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(kills):
            was_cut, completed = kill_one(folder, ranks, number, chance)
            last = max(last, completed)
            cut += was_cut
            wrong = judge(folder, last)
            if wrong:
                lost += 1
                print(f"kill {number}: {wrong}")
    print(f"{kills} kills of {ranks} ranks, {cut} of them in a save, {last} saves: {lost} lost something")
    print(json.dumps({"kills": kills, "ranks": ranks, "in_a_save": cut, "saves": last, "lost": lost}))


if __name__ == "__main__":
    main()

"""Time collectives of groups of ranks, and copies between host and GPU: run by each rank, before any training.

ADVISOR_LINKS holds the rounds. All ranks go through them in step; the groups of one round run at the same time. What
was found is written line by line, so that a round that never ends takes nothing from those before it.
"""

import json
import os
import signal
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

MOST, LEAST = 20, 3  # repetitions
SECONDS_EACH = 0.06  # of one operation at one size
LONGEST = 0.25  # seconds of one operation: larger sizes are not tried
GROWTH = 4
COPIES, COPY_BYTES = 5, 128 * 1024**2
FLOAT = 4  # bytes

Clock = Callable[[Callable[[], object], int], list[float]]  # runs it so many times, returns the seconds of each


def by_wall(operation: Callable[[], object], times: int) -> list[float]:
    found = []
    for _ in range(times):
        started = time.perf_counter()
        operation()
        found.append(time.perf_counter() - started)
    return found


def by_device(operation: Callable[[], object], times: int) -> list[float]:
    marks: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]  # type: ignore[no-untyped-call]
    marks[0].record()
    for mark in marks[1:]:
        operation()
        mark.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(marks)]


def all_reduce(size: int, group: Any, ranks: int, device: torch.device) -> Callable[[], object]:
    whole = torch.zeros(size // FLOAT, device=device)
    return lambda: dist.all_reduce(whole, group=group)


def all_gather(size: int, group: Any, ranks: int, device: torch.device) -> Callable[[], object]:
    part = torch.zeros(size // FLOAT // ranks, device=device)
    whole = torch.zeros(part.numel() * ranks, device=device)
    return lambda: dist.all_gather_into_tensor(whole, part, group=group)


def reduce_scatter(size: int, group: Any, ranks: int, device: torch.device) -> Callable[[], object]:
    part = torch.zeros(size // FLOAT // ranks, device=device)
    whole = torch.zeros(part.numel() * ranks, device=device)
    return lambda: dist.reduce_scatter_tensor(part, whole, group=group)


OPERATIONS = {"all_reduce": all_reduce, "all_gather": all_gather, "reduce_scatter": reduce_scatter}


def slowest(seconds: float, group: Any, device: torch.device) -> float:
    """Agree on the largest number of a group, so that all of it makes as many repetitions."""
    value = torch.tensor(seconds, device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=group)
    return float(value)


def time_group(group: Any, ranks: int, sizes: list[int], device: torch.device, clock: Clock) -> dict[str, Any]:
    """Return (bytes, median seconds of the slowest rank) for each operation."""
    found: dict[str, list[tuple[int, float]]] = {}
    for name, make in OPERATIONS.items():
        points = found[name] = []
        for size in sizes:
            operation = make(size, group, ranks, device)
            clock(operation, 1)
            first = slowest(clock(operation, 1)[0], group, device)
            times = max(LEAST, min(MOST, int(SECONDS_EACH / max(first, 1e-6))))
            median = statistics.median(clock(operation, times))
            points.append((size, slowest(median, group, device)))
            if points[-1][1] * GROWTH > LONGEST:
                break
    return found


def time_copies(device: torch.device) -> dict[str, float]:
    """Return the bytes per second of copies from pinned host memory, and back."""
    host = torch.empty(COPY_BYTES // FLOAT, pin_memory=True)
    there = torch.empty(COPY_BYTES // FLOAT, device=device)
    copies = {
        "to_gpu": lambda: there.copy_(host, non_blocking=True),
        "from_gpu": lambda: host.copy_(there, non_blocking=True),
    }
    found = {}
    for name, copy in copies.items():
        by_device(copy, 1)
        found[name] = COPY_BYTES / statistics.median(by_device(copy, COPIES))
    return found


def meet(store: Any, name: str, ranks: int) -> None:
    """Wait until all ranks are here, without a word over the links."""
    if store.add(name, 1) == ranks:
        store.set(f"{name} all", "1")
    store.wait([f"{name} all"])


def main() -> None:
    given = json.loads(os.environ["ADVISOR_LINKS"])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = float(given["limit"])

    def note(**what: Any) -> None:
        with (Path(given["folder"]) / f"{rank}.jsonl").open("a") as file:
            file.write(json.dumps(what) + "\n")

    # The alarm's default action ends a process that hangs inside a library, where no thread of python could.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, float(given["start_limit"]))
    on_gpu = given["backend"] == "nccl"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
    patience = timedelta(seconds=limit + float(given["start_limit"]))
    store: Any = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), ranks, rank == 0, patience)
    dist.init_process_group(given["backend"], store=store, rank=rank, world_size=ranks, timeout=patience)
    for one in given["rounds"]:
        meet(store, one["name"], ranks)
        signal.setitimer(signal.ITIMER_REAL, limit)
        note(began=one["name"])
        made = [(members, dist.new_group(members)) for members in one["groups"]]
        own = next(((members, group) for members, group in made if rank in members), None)
        found: dict[str, Any] = {}
        if one["copies"]:
            found = time_copies(device)
        elif own is not None:
            found = time_group(own[1], len(own[0]), given["sizes"], device, by_device if on_gpu else by_wall)
        meet(store, f"{one['name']} done", ranks)
        note(ended=one["name"], found=found)
    store.set(f"left {rank}", "1")
    if rank == 0:  # the store is here
        store.wait([f"left {other}" for other in range(ranks)])
    os._exit(0)  # what was found is written; destroying communicators may hang


main()

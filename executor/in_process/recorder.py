"""Step times and peak memory of one rank, written to `ranks/<rank>.jsonl`. `advisor.executor.records` reads it back.

Each line is one JSON object with a "kind". Nothing here waits for the GPU: a device time is read once it is there.
"""

import json
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

FLUSH_SECONDS = 1.0


class Recorder:
    """Marks the end of each step of the script's first optimizer; other optimizers step within that step."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        self.exit_code = 0  # unless the worker sees an exception
        self.finish_observing: Callable[[], None] | None = None  # to be called after the first step
        self.last_step: int | None = None  # after which a trial ends
        self._pid = os.getpid()
        self._file = os.open(folder / f"{rank}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._observed = False
        self._optimizer: weakref.ref[Any] | None = None
        self._ended: deque[tuple[float, Any]] = deque()  # wall clock and CUDA event of step ends; the first is measured
        self._steps: list[tuple[float, float | None]] = []  # seconds by wall clock and by device, not yet written
        self._written = 0  # steps
        self._flushed = time.perf_counter()
        self._memory: dict[str, int] = {}
        self.note("start", rank=rank, pid=self._pid, time=time.time())

    def note(self, kind: str, **facts: Any) -> None:
        """Write one line at once."""
        os.write(self._file, json.dumps({"kind": kind, **facts}, default=repr).encode() + b"\n")

    def step_ended(self, optimizer: Any, *_: Any) -> None:
        """Mark the end of a step; registered as a hook of all optimizers."""
        now = time.perf_counter()
        if os.getpid() != self._pid or not self._is_main(optimizer):
            return
        if self.finish_observing is not None and not self._observed:
            self._observed = True
            self.finish_observing()
            now = time.perf_counter()
        self._ended.append((now, self._device_mark()))
        self._measure()
        if self.last_step is not None:
            self._flush(now)  # a trial may be killed at any time
            if self._written + len(self._ended) >= self.last_step:
                self.close()
                os._exit(0)  # nothing that the script does at its end belongs to a trial
        elif now - self._flushed >= FLUSH_SECONDS:
            self._flush(now)

    def count_only(self, owner: Any) -> None:
        """Count the steps that are told for `owner`, not those of the optimizers within it."""
        self._optimizer = weakref.ref(owner)

    def close(self) -> None:
        """Write what is left and how the script ended."""
        if os.getpid() != self._pid:
            return
        if self.last_step is not None and self._ended and self._ended[-1][1] is not None:
            self._ended[-1][1].synchronize()
        self._measure(last=True)
        self._flush(time.perf_counter())
        self.note("end", exit_code=self.exit_code)
        os.close(self._file)

    def _is_main(self, optimizer: Any) -> bool:
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        return self._optimizer() is optimizer

    def _device_mark(self) -> Any:
        cuda = sys.modules["torch"].cuda
        if not cuda.is_initialized() or cuda.is_current_stream_capturing():
            return None
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def _measure(self, last: bool = False) -> None:
        """Turn pairs of step ends into seconds, as far as the device has come; at the `last` call, all of them."""
        while len(self._ended) > 1:
            (start, start_mark), (end, end_mark) = self._ended[0], self._ended[1]
            ready = end_mark is not None and end_mark.query()
            if not (ready or last or end_mark is None):
                return
            device = start_mark.elapsed_time(end_mark) / 1e3 if ready and start_mark is not None else None
            self._steps.append((end - start, device))
            self._ended.popleft()

    def _flush(self, now: float) -> None:
        self._flushed = now
        if self._steps:
            wall = [round(seconds, 7) for seconds, _ in self._steps]
            device = [None if seconds is None else round(seconds, 7) for _, seconds in self._steps]
            # The first step of all has no measured start: the measured ones are counted from 1.
            self.note("steps", first=self._written + 1, wall=wall, device=device)
            self._written += len(self._steps)
            self._steps.clear()
        memory = peak_memory(self._memory)
        if memory != self._memory:
            self._memory = memory
            self.note("memory", **memory)


def peak_memory(before: dict[str, int]) -> dict[str, int]:
    """Read the peaks in bytes, none lower than `before`: a script may reset the allocator's."""
    now = {"peak_rss": peak_rss()}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        free, total = torch.cuda.mem_get_info()
        now["peak_allocated"] = torch.cuda.max_memory_allocated()
        now["peak_reserved"] = torch.cuda.max_memory_reserved()
        now["device_used"] = total - free  # of all processes on this GPU, the CUDA context included
    return {name: max(size, before.get(name, 0)) for name, size in now.items()}


def peak_rss() -> int:
    """Read the peak resident memory of this process, in bytes.

    `getrusage` would not do: its maximum survives exec, so that it starts with that of torchrun.
    """
    status = Path("/proc/self/status").read_bytes()
    return int(status.split(b"VmHWM:")[1].split()[0]) * 1024

"""Measured against predicted: the value that a run leaves behind."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from advisor.executor.fault import Fault
from advisor.executor.folder import write_whole
from advisor.executor.proof import Proof
from advisor.executor.records import Loss, Memory, RankRecord
from advisor.rules.machine import Unknown, Value
from advisor.rules.plan import Finding, Plan, Predicted
from advisor.rules.trial import Calibrated

# Step 0 has no measured start; DDP rebuilds its buckets in step 1. A plan's `static_graph` does in steps 3 and 5 again,
# which a median bears.
WARM_UP_STEPS = 3


class StepTime(Value, frozen=True, kw_only=True):
    """Seconds of one optimizer step, warm-up left out. Ten per cent of the steps lie below `low`, ten above `high`."""

    median: float
    low: float
    high: float
    steps: int


class RankRun(Value, frozen=True, kw_only=True):
    rank: int
    steps: int  # optimizer steps, warm-up included
    step: StepTime | None = None
    clock: str = (
        "wall"  # "device": by CUDA events, which see the GPU's time where the wall clock sees only the queueing
    )
    peak_rss: int | None = None  # bytes
    peak_allocated: int | None = None  # bytes, of torch's allocator; compare Memory.total without its context
    peak_reserved: int | None = None  # bytes
    device_used: int | None = None  # bytes, of the whole GPU; compare Memory.total
    exit_code: int | None = None  # None: ended by a signal or os._exit


class Change(Value, frozen=True, kw_only=True):
    """One argument of DistributedDataParallel that plan and script both have something to say about."""

    argument: str
    script: object  # None: the script did not pass it
    plan: object
    used: str  # "plan" | "script"


class Became(Value, frozen=True, kw_only=True):
    """One thing that the plan asks of a library such as accelerate, and what its live objects said it is."""

    library: str  # and version
    what: str
    wanted: object
    became: object
    ranks: tuple[int, ...]


class Errors(Value, frozen=True, kw_only=True):
    """Predicted minus measured, in per cent of measured; None where one of them is missing."""

    step_pct: float | None = None
    device_memory_pct: float | None = None
    allocated_memory_pct: float | None = None


class Run(Value, frozen=True, kw_only=True):
    """What `report.json` holds."""

    version: int = 1
    script: str
    arguments: tuple[str, ...]
    folder: str
    started: str  # ISO 8601 with offset
    seconds: float  # from start to end, launching included
    exit_code: int  # the script's own, as a shell shows it
    failed_rank: int | None = None  # the first to fail
    failure: str | None = None  # the last line that it wrote to standard error
    fault: Fault | None = None  # what went wrong, in words
    plan: Plan
    predicted: Predicted | None
    step: StepTime | None  # of the slowest rank
    errors: Errors
    ranks: tuple[RankRun, ...]
    changes: tuple[Change, ...] = ()
    became: tuple[Became, ...] = ()
    findings: tuple[Finding, ...] = ()  # on the machine and the plan, before the start
    calibrated: Calibrated | None = None  # how the plan was chosen by trials, before the start
    proof: Proof | None = None  # of a plain script: its first steps against one process, before the start
    losses: tuple[Loss, ...] = ()  # of a plain script, over all ranks
    unknown: tuple[Unknown, ...] = ()


def rank_run(record: RankRecord) -> RankRun:
    """Sum up one rank."""
    measured = record.steps[WARM_UP_STEPS - 1 :]
    device = [seconds for _, seconds in measured if seconds is not None]
    memory = record.memory or Memory()
    return RankRun(
        rank=record.rank,
        steps=len(record.steps) + 1 if record.steps else 0,
        step=step_time(device or [wall for wall, _ in measured]),
        clock="device" if device else "wall",
        peak_rss=memory.peak_rss,
        peak_allocated=memory.peak_allocated,
        peak_reserved=memory.peak_reserved,
        device_used=memory.device_used,
        exit_code=record.exit_code,
    )


def step_time(seconds: Sequence[float]) -> StepTime | None:
    """Return median and spread. Evaluation and checkpoints between two steps touch few of them, so not the median."""
    if not seconds:
        return None
    if len(seconds) == 1:
        return StepTime(median=seconds[0], low=seconds[0], high=seconds[0], steps=1)
    tenths = statistics.quantiles(seconds, n=10, method="inclusive")
    return StepTime(median=statistics.median(seconds), low=tenths[0], high=tenths[-1], steps=len(seconds))


def compare(predicted: Predicted | None, step: StepTime | None, ranks: Iterable[RankRun]) -> Errors:
    """Return the errors of a prediction; memory is that of the rank that used most."""
    if predicted is None:
        return Errors()
    used = [rank.device_used for rank in ranks if rank.device_used is not None]
    allocated = [rank.peak_allocated for rank in ranks if rank.peak_allocated is not None]
    memory = predicted.memory
    return Errors(
        step_pct=error_pct(predicted.step_seconds, None if step is None else step.median),
        device_memory_pct=error_pct(memory.total, max(used, default=None)),
        allocated_memory_pct=error_pct(memory.total - memory.context, max(allocated, default=None)),
    )


def error_pct(predicted: float, measured: float | None) -> float | None:
    """Predicted 9, measured 10 is -10 %."""
    return None if not measured else 100 * (predicted - measured) / measured


def changes(plan: Plan, records: Iterable[RankRecord]) -> tuple[Change, ...]:
    """List what the plan changed or could not change in the script's DDP calls, each once."""
    planned = msgspec.structs.asdict(plan)
    found: list[Change] = []
    for record in records:
        for ddp in record.ddp:
            for name, value in ddp.given.items():
                found.append(Change(argument=name, script=ddp.overridden.get(name), plan=value, used="plan"))
            for name, value in ddp.kept.items():
                found.append(Change(argument=name, script=value, plan=planned.get(name), used="script"))
    return tuple(change for i, change in enumerate(found) if change not in found[:i])


def became(records: Iterable[RankRecord]) -> tuple[Became, ...]:
    """List what the libraries became on which ranks."""
    found: dict[tuple[str, str, str, str], Became] = {}
    for record in records:
        for library in record.libraries:
            for what, value in library.became.items():
                wanted = library.wanted.get(what)
                key = (library.name, what, repr(wanted), repr(value))
                one = found.get(key) or Became(library=library.name, what=what, wanted=wanted, became=value, ranks=())
                if record.rank not in one.ranks:
                    found[key] = msgspec.structs.replace(one, ranks=(*one.ranks, record.rank))
    return tuple(found.values())


def losses(records: Iterable[RankRecord]) -> tuple[Loss, ...]:
    """Return the losses of a plain script, which are the same on all ranks."""
    return next((record.losses for record in records), ())


def unknowns(ranks: Sequence[RankRun], records: Sequence[RankRecord]) -> tuple[Unknown, ...]:
    """Say what the run did not tell and why."""
    missing: list[Unknown] = []
    if all(rank.step is None for rank in ranks):
        most = max((rank.steps for rank in ranks), default=0)
        few = f"the script made {most} optimizer steps; the first {WARM_UP_STEPS} are warm-up"
        why = few if most else "the script made fewer than two steps of a torch.optim optimizer"
        missing.append(Unknown(what="step time", why=why))
    if not any(record.ddp or record.losses for record in records):
        missing.append(
            Unknown(what="plan's bucket settings in effect", why="the script built no DistributedDataParallel")
        )
    return tuple(missing)


def write_report(path: Path, run: Run) -> None:
    write_whole(path, msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n")


def read_report(path: Path) -> Run:
    return msgspec.json.decode(path.read_bytes(), type=Run)

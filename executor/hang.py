"""What the ranks of a run that makes no progress wait for, and who does not come. Pure: pictures in, words out."""

from collections.abc import Sequence

from msgspec import field

from advisor.executor.frames import Frame, own_line
from advisor.rules.machine import Value

# Where a rank stands that meets the others in the store, as init_process_group does, and not in a collective.
MEETING = ("torch/distributed/distributed_c10d.py", "torch/distributed/rendezvous.py")
# What a rank is doing, by the first of these that lies in its stack.
DOING = (
    ("torch/utils/data/", "in its data loader"),
    ("torch/_inductor/", "compiling"),
    ("torch/_dynamo/", "compiling"),
    ("torch/distributed/checkpoint/", "in a checkpoint"),
    ("torch/serialization.py", "reading or writing a file with torch"),
)


class Pending(Value, frozen=True, kw_only=True):
    number: int
    since: float  # seconds since 1970


class GroupState(Value, frozen=True, kw_only=True):
    """One process group as one rank sees it; collectives by number, in words."""

    description: str = ""
    ranks: tuple[int, ...] | None = None
    collectives: dict[int, str] = field(default_factory=dict)
    pending: Pending | None = None


class Picture(Value, frozen=True, kw_only=True):
    """Where one rank stands."""

    rank: int
    pid: int
    stack: tuple[Frame, ...] = ()  # the innermost first
    groups: dict[str, GroupState] = field(default_factory=dict)
    works: bool | None = None  # its processes use CPU or files
    answers: bool = True
    exit_code: int | None = None  # it has ended

    @property
    def waits(self) -> str | None:
        """Name what it waits in: a collective, or a function of torch.distributed."""
        for group in self.groups.values():
            if group.pending is not None:
                return group.collectives.get(group.pending.number, "a collective")
        calls = [frame.name for frame in self.stack if frame.file.endswith(MEETING)]
        return calls[-1] if calls and self.stack[0].file.endswith(MEETING) else None

    @property
    def doing(self) -> str:
        if self.exit_code is not None:
            return f"has ended with exit code {self.exit_code}"
        if not self.stack:
            return "does not answer"
        what = next((words for path, words in DOING if any(path in frame.file for frame in self.stack)), "")
        how = {True: "busy", False: "idle", None: ""}[self.works]
        silent = "" if self.answers else "in native code that keeps Python's lock"
        return ", ".join(part for part in (how, what, silent) if part) or "elsewhere"

    @property
    def place(self) -> Frame | None:
        """The innermost line of the user's own code."""
        return own_line(self.stack)


class Hang(Value, frozen=True, kw_only=True):
    """A run that was stopped because it made no progress."""

    seconds: float
    what: str  # one sentence
    ranks: tuple[str, ...]  # a line each
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    todo: tuple[str, ...]


def waiting(pictures: Sequence[Picture]) -> list[Picture]:
    return [picture for picture in pictures if picture.exit_code is None and picture.waits is not None]


def missing(pictures: Sequence[Picture]) -> list[Picture]:
    """List the ranks that others wait for: those that have not entered the first collective that is not done.

    Where it is no collective that they wait in, those that do not wait.
    """
    late: set[int] = set()
    for picture in waiting(pictures):
        for name, group in picture.groups.items():
            if group.pending is not None:
                members = group.ranks or tuple(other.rank for other in pictures)
                number = group.pending.number
                late |= {o.rank for o in pictures if o.rank in members and _entered(o, name) < number}
    if not late and not any(group.pending for picture in pictures for group in picture.groups.values()):
        late = {picture.rank for picture in pictures} - {picture.rank for picture in waiting(pictures)}
    return [picture for picture in pictures if picture.rank in late]


def mismatch(pictures: Sequence[Picture]) -> str | None:
    """Say which ranks called different collectives where one was due."""
    for picture in waiting(pictures):
        for name, group in picture.groups.items():
            if group.pending is None:
                continue
            number = group.pending.number
            calls: dict[str, list[int]] = {}
            for other in pictures:
                call = other.groups[name].collectives.get(number) if name in other.groups else None
                if call is not None:
                    calls.setdefault(call, []).append(other.rank)
            if len({call.split(" ")[0] for call in calls}) > 1:
                return ", ".join(f"{_ranks(ranks)} called {call}" for call, ranks in calls.items())
    return None


def signature(pictures: Sequence[Picture]) -> object:
    """Return what changes when a rank enters or completes a collective, or ends."""
    return [
        (p.rank, p.exit_code, {name: (_entered(p, name), g.pending) for name, g in p.groups.items()}, p.waits)
        for p in pictures
    ]


def hang_of(pictures: Sequence[Picture], seconds: float) -> Hang:
    """Put a hang into words."""
    waits, late, differ = waiting(pictures), missing(pictures), mismatch(pictures)
    absent = {picture.rank for picture in late}
    lines = []
    for picture in pictures:
        place = f", {picture.place}" if picture.place else ""
        state = f"waits in {picture.waits}" if picture.waits else picture.doing
        absence = "is missing: " if picture.rank in absent else ""
        lines.append(f"rank {picture.rank} (pid {picture.pid}) {absence}{state}{place}")
    return Hang(
        seconds=seconds,
        what=_sentence(waits, late, differ, seconds),
        ranks=tuple(lines),
        waiting=tuple(picture.rank for picture in waits),
        missing=tuple(picture.rank for picture in late),
        todo=_todo(waits, late, differ),
    )


def notice_of(pictures: Sequence[Picture], seconds: float, patience: float) -> str:
    """Say that others wait for ranks that work."""
    late = missing(pictures)
    where = "; ".join(f"rank {p.rank} is {p.doing}{f', {p.place}' if p.place else ''}" for p in late)
    waits = _ranks([picture.rank for picture in waiting(pictures)])
    return f"{waits} waited {seconds:.0f} s for others: {where}; stopping if that lasts {patience:.0f} s"


def _sentence(waits: Sequence[Picture], late: Sequence[Picture], differ: str | None, seconds: float) -> str:
    start = f"no progress for {seconds:.0f} s"
    if differ is not None:
        return f"{start}: the ranks call different collectives: {differ}"
    calls = " and ".join(dict.fromkeys(picture.waits or "" for picture in waits))
    who = _ranks([picture.rank for picture in waits])
    verb = "waits" if len(waits) == 1 else "wait"
    if not late:
        return f"{start}: all ranks are in {calls}, and it does not end"
    come = "does not come" if len(late) == 1 else "do not come"
    return f"{start}: {who} {verb} in {calls}; {_ranks([picture.rank for picture in late])} {come}"


def _todo(waits: Sequence[Picture], late: Sequence[Picture], differ: str | None) -> tuple[str, ...]:
    if differ is not None:
        return ("every rank must call the same collectives in the same order: look for a branch on the rank",)
    if not late and all(picture.waits == "init_process_group" for picture in waits):
        # With torchrun's own store no rank serves the port that a script fixes: all of them wait for it.
        return (
            "call init_process_group() without init_method: torchrun has the ranks meet by MASTER_ADDR and MASTER_PORT",
        )
    if not late:
        return (
            "test the links alone: NCCL_DEBUG=INFO, then NCCL_P2P_DISABLE=1 for one run, and dmesg for Xid errors",
            "a rank may have called another number of collectives before: look for a branch on the rank",
        )
    if any(picture.exit_code is not None for picture in late):
        return ("give every rank the same number of steps: DistributedSampler with drop_last, or model.join()",)
    if any(any("torch/utils/data/" in frame.file for frame in picture.stack) for picture in late):
        return (
            "see what its data loader waits for: its workers, storage, a lock; try num_workers=0, and timeout=60",
            "give every rank the same number of batches: DistributedSampler with drop_last=True",
        )
    return (
        "make the missing rank reach the same collective: look at its line above for a branch, a lock or a long task",
        "longer work of one rank, such as an evaluation, is fine with a larger --hang-timeout; 0 never stops",
    )


def _entered(picture: Picture, group: str) -> int:
    state = picture.groups.get(group)
    return max(state.collectives, default=0) if state is not None else 0


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"

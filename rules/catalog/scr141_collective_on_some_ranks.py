"""A call that all ranks must make stands where only some of them come: the job hangs.

## What it finds
A collective (`all_reduce`, `barrier`, `broadcast`, ...), the forward or backward pass or `state_dict()` of a sharded
model, a checkpoint that all ranks write together, or the backward pass under DistributedDataParallel, under
`if rank == 0:` or behind `if rank != 0: return`. Where a plan shards the model of a DDP script, its `state_dict()`,
that of its optimizers and its forward pass are such calls too. Silent where the other branch makes the same call, and
for a group of its own.

## Why it matters
The ranks that come there wait for those that don't: nothing moves until the timeout of the process group, 10 minutes
with NCCL. Worse, a barrier may pair with a later one elsewhere, and ranks run out of step.

## What to do
Make the call on all ranks; leave only the printing or the writing of the file under the condition.

## Source
torch.distributed, "Collective functions"; https://github.com/pytorch/pytorch/issues/54059; PyTorch FSDP, `state_dict`
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.collectives import answered, gathers_once_sharded
from advisor.rules.source.report import found
from advisor.rules.source.value import Event

RULE = ("SCR141", "collective-on-some-ranks")
RANKS = {"first": "rank 0 alone comes here", "others": "all but rank 0 come here", "some": "only some ranks come here"}
ON_ALL_RANKS = """\
state = model.state_dict()  # on every rank
if rank == 0:
    torch.save(state, path)"""


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None:
        return
    sharded = case.plan is not None and case.plan.strategy in ("fsdp", "hsdp")
    more = gathers_once_sharded(case.source) if sharded else []
    seen: set[tuple[str, int]] = set()
    for event in dict.fromkeys((*case.source.collectives, *more)):
        guard = event.by_rank
        if guard is None or guard.split not in RANKS or answered(case.source, event):
            continue
        if (event.file, event.line) in seen:
            continue
        seen.add((event.file, event.line))
        yield found(
            case,
            RULE,
            "error",
            event,
            happens=f"{RANKS[guard.split]} (line {guard.line}), and {_what(event)} waits for all: the job hangs until "
            "the process group's timeout",
            remedy=_remedy(event, guard.line),
            condition=guard.line,
        )


def _what(event: Event) -> str:
    if event.name.endswith(".state_dict"):
        return "state_dict() of a sharded model gathers from all ranks: it"
    if event.name.endswith("()"):
        return "the forward pass of a sharded model"
    return f"{event.name.rpartition('.')[2]}()"


def _remedy(event: Event, line: int) -> str:
    if event.name.endswith(".state_dict"):
        return ON_ALL_RANKS
    return f"call {event.name.rpartition('.')[2]} on every rank: move it out of the condition of line {line}"

"""The script chooses the visible GPUs itself.

## What it finds
`os.environ["CUDA_VISIBLE_DEVICES"]` set to a fixed text in a script that a launcher starts once per GPU; or set after
CUDA was started, where it has no effect any more.

## Why it matters
A fixed "2" fails on machines without a third GPU, and under torchrun all ranks share that one. CUDA reads the
variable once: set too late, it changes nothing.

## What to do
Choose GPUs outside, `CUDA_VISIBLE_DEVICES=2,3 torchrun --nproc-per-node=2 train.py`, and use LOCAL_RANK inside.

## Source
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding, Severity
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.source import Source
from advisor.rules.source.value import Event

RULE = ("SCR132", "visible-devices-set-in-script")
ASSIGNED = "os.environ.CUDA_VISIBLE_DEVICES"


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    source = case.source
    if source is None:
        return
    started = next((event.index for event in source.events if _starts_cuda(event)), None)
    for event in source.events:
        if event.kind != "assign" or event.name != ASSIGNED or event.alone or not isinstance(event.value.const, str):
            continue
        late = started is not None and started < event.index
        shared = source.many_ranks and not _spawns(source)
        severity: Severity = "error" if shared else "warning" if late else "info"
        happens = (
            "every rank that a launcher starts sees these GPUs only, whatever the machine has"
            if shared
            else "CUDA has read the variable already: this has no effect"
            if late
            else "the choice is fixed in the script, and overrides what a launcher or a scheduler has set"
        )
        yield found(
            case,
            RULE,
            severity,
            event,
            happens=happens,
            remedy="choose GPUs outside: CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node=2 train.py; inside, use "
            "LOCAL_RANK",
        )


def _starts_cuda(event: Event) -> bool:
    moves = event.kind == "call" and event.name.startswith("<") and event.name.endswith(".cuda")
    return moves or event.name in ("torch.cuda.set_device", "torch.cuda.init", "torch.cuda.current_device")


def _spawns(source: Source) -> bool:
    return any(True for _ in source.calls("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"))

"""The script fixes the port at which ranks meet.

## What it finds
`os.environ["MASTER_PORT"]` or `MASTER_ADDR` set to a fixed text, or an `init_method` with a fixed port.

## Why it matters
Two jobs on one host want the same port: "Address already in use", or they meet each other. In a script that torchrun
starts it also overrides what torchrun has set, and ranks wait for a store that is not there.

## What to do
Leave both to the launcher: `torchrun --standalone` picks a free port. Where the script starts its own processes, bind
port 0 to find a free one.

## Source
https://docs.pytorch.org/docs/stable/elastic/run.html; https://github.com/pytorch/pytorch/issues/73320
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.source import Source
from advisor.rules.source.value import Event

RULE = ("SCR135", "rendezvous-fixed-in-script")
PORT = "os.environ.MASTER_PORT"


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    source = case.source
    if source is None:
        return
    for event in source.events:
        if not _fixes(event) or any(not guard.is_main for guard in event.guards):
            continue
        launched = _launched(source) and event.kind == "assign"
        yield found(
            case,
            RULE,
            "warning" if launched else "info",
            event,
            happens="torchrun has set this port already, and ranks look for its store there"
            if launched
            else "a second job on this host wants the same port, and fails or meets this one",
            remedy="leave MASTER_ADDR and MASTER_PORT to the launcher: torchrun --standalone --nproc-per-node=gpu",
        )
        return


def _fixes(event: Event) -> bool:
    if event.kind == "assign":
        return event.name == PORT and event.value.known
    method = event.words.get("init_method") if event.name == "torch.distributed.init_process_group" else None
    return method is not None and isinstance(method.const, str) and method.const.startswith("tcp://")


def _launched(source: Source) -> bool:
    """Say whether the script reads what torchrun alone sets, and is no launcher itself."""
    spawns = any(True for _ in source.calls("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"))
    itself = any(event.kind == "assign" and event.name == "os.environ.RANK" for event in source.events)
    return source.reads("LOCAL_RANK") and not spawns and not itself

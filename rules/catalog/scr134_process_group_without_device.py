"""The process group is not told which GPU the rank has.

## What it finds
`init_process_group` for NCCL without `device_id`.

## Why it matters
With `device_id`, the communicator is made at once: errors come early, `barrier` uses the right GPU, and further groups
are split off it, which saves memory and time.

## What to do
`dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))`.

## Source
torch.distributed.init_process_group, `device_id`
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found

RULE = ("SCR134", "process-group-without-device")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None:
        return
    for event in case.source.calls("torch.distributed.init_process_group"):
        backend = event.argument("backend", 0)
        if "device_id" in event.words or backend is None or backend.const != "nccl":
            continue
        yield found(
            case,
            RULE,
            "info",
            event,
            happens="the group is not told its GPU: it is set up at the first collective, and errors come late",
            remedy='dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))',
        )
        return

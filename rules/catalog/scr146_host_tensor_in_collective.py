"""NCCL is given a tensor in host memory.

## What it finds
A collective on a tensor that the script makes without a device and never moves, in a process group for NCCL alone.

## Why it matters
NCCL knows GPU memory only: "No backend type associated with device type cpu". It stops where the value is first
reduced, often at the end of the first epoch.

## What to do
`torch.tensor(value, device=device)`; or a group for both, `init_process_group("cpu:gloo,cuda:nccl")`.

## Source
torch.distributed, "Backends"
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.source import Source
from advisor.rules.source.value import Value

RULE = ("SCR146", "host-tensor-in-collective")
CALLS = tuple(f"torch.distributed.{name}" for name in ("all_reduce", "broadcast", "reduce"))
MAKERS = ("torch.tensor", "torch.zeros", "torch.ones", "torch.full", "torch.Tensor", "torch.FloatTensor")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    source = case.source
    if source is None or not _nccl_alone(source):
        return
    seen: set[tuple[str, int]] = set()
    for event in source.calls(*CALLS):
        tensor = event.argument("tensor", 0)
        at = (event.file, event.line)
        if tensor is None or at in seen or event.alone or not _on_host(tensor) or _moved(source, tensor):
            continue
        if "group" in event.words:
            continue
        seen.add(at)
        yield found(
            case,
            RULE,
            "error",
            event,
            happens=f"the tensor of line {tensor.line} is in host memory, and the group is for NCCL alone: it stops "
            "with 'No backend type associated with device type cpu'",
            remedy="torch.tensor(value, device=device)",
            made=tensor.line,
        )


def _nccl_alone(source: Source) -> bool:
    groups = list(source.calls("torch.distributed.init_process_group"))
    backends = [event.argument("backend", 0) for event in groups]
    default = any(event.name == "torch.set_default_device" for event in source.events)
    return bool(groups) and not default and all(backend and backend.const == "nccl" for backend in backends)


def _on_host(tensor: Value) -> bool:
    made = tensor.name in MAKERS and "device" not in tensor.words and not tensor.options
    return made and not any(argument.role in ("tensor", "batch") for argument in tensor.args)


def _moved(source: Source, tensor: Value) -> bool:
    moves = (".to", ".cuda", ".type", ".copy_")
    return any(event.receiver is tensor and event.name.endswith(moves) for event in source.events)

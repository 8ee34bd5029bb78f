"""The plan fills more than 90 % of the GPU, and the allocator's expandable segments are off.

## What it finds
A plan on NVIDIA GPUs that needs more than 90 % of their free memory, where the environment does not set
`expandable_segments`.

## Why it matters
The caching allocator keeps blocks of the sizes that were asked for. Where sizes change (variable lengths, FSDP's
streams, evaluation between steps) a new size finds no hole, though enough is free in all: "reserved but unallocated".
Expandable segments grow in place instead. One user's step went from 127 to 97 GB reserved.

## What to do
Nothing: the plan sets it. A value of your own is kept; then add `expandable_segments:True` to it, behind a comma. The
name is PYTORCH_ALLOC_CONF; torch before 2.10 reads only PYTORCH_CUDA_ALLOC_CONF for it, which later ones read as well.

## Source
https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management;
https://github.com/pytorch/pytorch/issues/183387 (2.9 ignores the new name);
https://github.com/nvidia-cosmos/cosmos-rl/pull/388 for the figures
"""

from collections.abc import Iterator

from advisor.rules.format import memory, percent
from advisor.rules.hardware import gpu_model
from advisor.rules.machine import Machine
from advisor.rules.memory import USABLE
from advisor.rules.plan import Finding, Plan
from advisor.rules.rule import Case, rule

FULL = 0.9  # of what is free
NAME, OLD_NAME = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
SETTING = "expandable_segments:True"
REGISTERS = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"  # torch refuses it together with expandable segments


@rule("MEM107", "allocator-may-fragment")
def check(case: Case) -> Iterator[Finding]:
    plan, predicted, machine = case.plan, case.predicted, case.machine
    if plan is None or predicted is None or not _can_expand(plan, machine):
        return
    needed = predicted.memory
    free = needed.available / USABLE
    set_already = {name: machine.environment[name] for name in (NAME, OLD_NAME) if name in machine.environment}
    if needed.total <= FULL * free or any("expandable_segments" in value for value in set_already.values()):
        return
    name = next(iter(set_already), _name(machine.software.torch))
    filled = f"the plan fills {memory(needed.total)} of {memory(free)}, {percent(needed.total / free)}"
    if set_already:
        action = f"{name} is set without {SETTING}"
        remedy = f"export {name}={set_already[name]},{SETTING}"
    else:
        action = f"it sets {name}={SETTING}, so that the rest is not lost in pieces"
        remedy = f"none needed; export {name} yourself to choose otherwise"
    yield Finding(
        code="MEM107",
        name="allocator-may-fragment",
        severity="info",
        message=f"{filled}; {action}",
        facts={"total": needed.total, "free": int(free)} | ({} if set_already else {"env": {name: SETTING}}),
        remedy=remedy,
    )


def _can_expand(plan: Plan, machine: Machine) -> bool:
    """Say whether expandable segments work there: NVIDIA's driver on Linux, no registering of all memory with NCCL."""
    models = [gpu_model(gpu.name or "") for gpu in machine.gpus]
    amd = any(model is not None and model.compute_capability is None for model in models)
    windows = "windows" in (machine.host.os or "").lower() or "wsl" in (machine.host.os or "").lower()
    registers = machine.environment.get(REGISTERS, "0").lower() not in ("", "0", "false", "f", "no", "n")
    return plan.launcher.device == "cuda" and not (amd or windows or registers)


def _name(torch: str | None) -> str:
    """Return the variable's name for a version of torch; where it is not known, that of the versions we run on."""
    numbers = (torch or "").split(".")[:2]
    if len(numbers) < 2 or not all(number.isdecimal() for number in numbers):
        return NAME
    return NAME if (int(numbers[0]), int(numbers[1])) >= (2, 10) else OLD_NAME

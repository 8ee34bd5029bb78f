"""NCCL_ALGO decides the algorithm in the place of NCCL.

## What it finds
NCCL_ALGO in any layer. An error where it leaves a collective that training needs without an algorithm (broadcast has
the ring alone, all-gather and reduce-scatter have no tree), or where NCCL can't read it; a warning where it shuts out
NVLink SHARP on a machine that has it.

## Why it matters
Before NCCL 2.24 the ring stepped in where nothing was left; since then the call fails with "No algorithm/protocol
available": DDP broadcasts the model at its start, FSDP gathers. And where NVSwitch can add up (Hopper and newer),
forcing the ring takes a quarter of the all-reduce bandwidth: 360 instead of 475 GB/s on eight H100.

## What to do
Unset it. To shut out one algorithm for a test, name it as an exception: NCCL_ALGO=^NVLS.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-algo;
https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/graph/tuning.cc; bandwidth: docs/machines.md
"""

from collections.abc import Iterator

from advisor.rules.machine import Machine
from advisor.rules.nccl_choice import allowed, has_multicast
from advisor.rules.nccl_variables import nccl_version, number_of, setting
from advisor.rules.plan import Finding, Severity
from advisor.rules.rule import Case, rule

ALGORITHMS = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
# The collectives that DDP and FSDP need, and what can do them everywhere; PAT needs hosts with one GPU each.
EVERYWHERE = {"broadcast": {"ring"}, "allreduce": {"ring", "tree"}, "allgather": {"ring"}, "reducescatter": {"ring"}}
NO_FALL_BACK = (2, 24)


@rule("ENV108", "nccl-algorithm-forced")
def check(case: Case) -> Iterator[Finding]:
    found = setting(case.machine, "NCCL_ALGO")
    if found is None:
        return
    severity, why = _judge(case.machine, found.value)
    yield Finding(
        code="ENV108",
        name="nccl-algorithm-forced",
        severity=severity,
        message=f"{found.words}: {why}",
        facts=found.facts,
        remedy=f"{found.undo}; NCCL chooses by size and links",
    )


def _judge(machine: Machine, value: str) -> tuple[Severity, str]:
    """Say how bad the list is and why."""
    lists = allowed(value, ALGORITHMS)
    if isinstance(lists, str):
        return "error", f"NCCL does not know {lists!r} and refuses to start"
    multicast = has_multicast(machine)
    left = {name: set(lists.get(name, ALGORITHMS)) & _there(machine, name, multicast) for name in EVERYWHERE}
    stuck = [name for name, names in left.items() if not names]
    if stuck and nccl_version(machine) >= NO_FALL_BACK:
        return "error", f"it leaves no algorithm for {', '.join(stuck)}, which fail since NCCL 2.24"
    if stuck:
        return "info", f"it leaves no algorithm for {', '.join(stuck)}, where this NCCL falls back to the ring"
    if multicast and not left["allreduce"] & {"nvls", "nvlstree"}:
        return "warning", "it shuts NVLink SHARP out: about 360 instead of 475 GB/s all-reduce on eight H100, 24 % less"
    return "info", "NCCL chooses the algorithm by size and links, and can't any more"


def _there(machine: Machine, function: str, multicast: bool) -> set[str]:
    """Return the algorithms that this machine has for a collective."""
    found = set(EVERYWHERE[function])
    if function == "broadcast":
        return found
    if multicast and (function == "allreduce" or len(machine.gpus) <= 8):
        found |= {"nvls"} if machine.nodes == 1 or number_of(machine, "NCCL_COLLNET_ENABLE") else set()
        found |= {"nvlstree"} if machine.nodes > 1 and function == "allreduce" else set()
    if number_of(machine, "NCCL_COLLNET_ENABLE"):
        found |= {"collnetdirect", "collnetchain"} if function == "allreduce" else {"collnetdirect"}
    if len(machine.gpus) <= 1 and function != "allreduce":
        found.add("pat")
    return found

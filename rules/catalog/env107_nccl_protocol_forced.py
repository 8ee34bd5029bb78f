"""NCCL_PROTO decides the protocol in the place of NCCL.

## What it finds
NCCL_PROTO in any layer. An error where it switches LL128 on between GPUs that have no NVLink between all of them, are
of unlike generations before Hopper, or are older than Volta, and where NCCL can't read it. Not only a list with LL128
does that: a list of exceptions such as ^LL or ^Simple switches on all that it does not name.

## Why it matters
LL128 relies on 128 bytes being stored as one, which only NVLink promises: elsewhere it can corrupt data without an
error. NCCL switches it on by itself where it is safe. Without Simple, large messages, which training is made of, run
at half of the bandwidth or less; without LL and LL128, small ones wait longer.

## What to do
Unset it.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-proto;
https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/graph/tuning.cc, parseList and ncclTopoTuneModel
"""

from collections.abc import Iterator

from advisor.rules.machine import Machine
from advisor.rules.nccl_choice import FUNCTIONS, allowed
from advisor.rules.nccl_variables import setting
from advisor.rules.plan import Finding, Severity
from advisor.rules.rule import Case, rule
from advisor.rules.transport import capability_of

PROTOCOLS = ("ll", "ll128", "simple")
VOLTA, HOPPER = 7.0, 9.0


@rule("ENV107", "nccl-protocol-forced")
def check(case: Case) -> Iterator[Finding]:
    found = setting(case.machine, "NCCL_PROTO")
    if found is None:
        return
    severity, why = _judge(case.machine, found.value)
    yield Finding(
        code="ENV107",
        name="nccl-protocol-forced",
        severity=severity,
        message=f"{found.words}: {why}",
        facts=found.facts,
        remedy=found.undo,
    )


def _judge(machine: Machine, value: str) -> tuple[Severity, str]:
    """Say how bad the list is and why."""
    lists = allowed(value, PROTOCOLS)
    if isinstance(lists, str):
        return "error", f"NCCL does not know {lists!r} and refuses to start"
    if any("ll128" in lists.get(function, ()) for function in FUNCTIONS):
        unsafe = _unsafe(machine)
        if unsafe is not None:
            return "error", f"it switches LL128 on, which can corrupt data where {unsafe}"
        if not machine.gpus:
            return "warning", "it switches LL128 on, which can corrupt data unless NVLink joins all GPUs"
    if any("simple" not in lists.get(function, PROTOCOLS) for function in FUNCTIONS):
        return "warning", "without Simple, large messages run at half of the bandwidth (LL) or 92 % (LL128)"
    if set(lists) == set(FUNCTIONS) and all(set(PROTOCOLS) == set(names) for names in lists.values()):
        return "info", "this is what NCCL would choose from anyway"
    return "info", "NCCL chooses the protocol by size and links, and can't any more; small messages wait longer"


def _unsafe(machine: Machine) -> str | None:
    """Say what makes LL128 unsafe here; None where NCCL would use it itself, or too little is known."""
    gpus = [gpu.id for gpu in machine.gpus]
    joined = {frozenset((link.a, link.b)) for link in machine.links if link.kind == "nvlink"}
    apart = [f"{a} and {b}" for i, a in enumerate(gpus) for b in gpus[i + 1 :] if frozenset((a, b)) not in joined]
    if apart and machine.links and not _through_one_more(gpus, joined):
        return f"{apart[0]} have no NVLink"
    known = [capability_of(gpu) for gpu in machine.gpus]
    generations = [float(c) for c in known if c is not None]
    if not generations:
        return None
    if min(generations) < VOLTA:
        return f"GPUs are older than Volta (compute capability {min(generations)})"
    if min(generations) != max(generations) and min(generations) < HOPPER:
        return f"GPUs differ (compute capability {min(generations)} and {max(generations)})"
    return None


def _through_one_more(gpus: list[str], joined: set[frozenset[str]]) -> bool:
    """Say whether all pairs have NVLink, direct or through one GPU between, as in a DGX-1."""
    near = {gpu: {gpu, *(other for pair in joined if gpu in pair for other in pair)} for gpu in gpus}
    return all(near[a] & near[b] for a in gpus for b in gpus)

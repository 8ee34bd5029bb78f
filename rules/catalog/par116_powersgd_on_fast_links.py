"""The script compresses gradients with PowerSGD, and the links are fast.

## What it finds
A script that uses PowerSGD's hook, on GPUs of one host whose slowest link has at least 50 GB/s.

## Why it matters
PowerSGD multiplies and orthogonalises each gradient before and after it is sent. That costs GPU time, one more copy of
the gradients (error feedback) and some accuracy, and pays only where the wire is what a step waits for. A user of 8
NVLinked A100 saw training slow down.

## What to do
Drop the hook and compare step times. If the reduction shows, send bf16 first: `default_hooks.bf16_compress_hook`.

## Source
https://github.com/epfml/powersgd/issues/17; https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html
"""

from collections.abc import Iterator

from advisor.rules.alternatives import exposed_share
from advisor.rules.format import bandwidth
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.topology import slowest_link

FAST = 50e9  # bytes per second, one direction
HOOKS = ("powerSGD_hook", "batched_powerSGD_hook")
WAITING = 0.2  # of the step: then compression may pay


@rule("PAR116", "powersgd-on-fast-links")
def check(case: Case) -> Iterator[Finding]:
    script, plan = case.script, case.plan
    if script is None or plan is None or plan.ranks == 1 or plan.nodes > 1:
        return
    used = next((name for name in script.uses if name.split(".")[-1] in HOOKS and "torch" in name), None)
    slowest = slowest_link(case.machine, plan.gpus)
    if used is None or slowest is None or slowest.bandwidth is None or slowest.bandwidth < FAST:
        return
    if case.predicted is not None and exposed_share(case.predicted) > WAITING:
        return
    yield Finding(
        code="PAR116",
        name="powersgd-on-fast-links",
        severity="info",
        message=(
            f"PowerSGD compresses gradients although the slowest link has {bandwidth(slowest.bandwidth)}: the "
            "compression takes GPU time, memory for a second copy of the gradients, and accuracy"
        ),
        facts={"bandwidth": slowest.bandwidth},
        remedy="leave the PowerSGD hook out, or use default_hooks.bf16_compress_hook",
        file=script.path,
        line=script.lines.get(used),
    )

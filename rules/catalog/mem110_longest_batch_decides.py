"""A batch with longer samples than planned for would not fit.

## What it finds
A plan for samples of tokens whose activations and logits take a third of its memory or more, and that has no room for
samples a quarter longer.

## Why it matters
Activations and logits grow with the tokens of a batch; weights and states do not. Where lengths vary, the longest batch
decides: a run can do thousands of steps and then fail in one. Memory that is flat between steps and high within them
is activations, not a leak.

## What to do
Give the longest sample as --seq, not the usual one. Cut or pack samples to one length, and try the longest batch first.

## Source
https://github.com/NVIDIA-NeMo/Automodel/issues/2634: 14B on 8x H100, 10 GiB between steps and 74 GiB within, failed at
step 5
"""

from collections.abc import Iterator

from advisor.rules.format import memory
from advisor.rules.memory import WORKSPACE_BYTES
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

SHARE = 1 / 3  # of the peak, that grows with the tokens
LONGER = 0.25  # how much longer samples must have room for, to be silent


@rule("MEM110", "longest-batch-decides")
def check(case: Case) -> Iterator[Finding]:
    job, plan, predicted = case.job, case.plan, case.predicted
    if job is None or plan is None or predicted is None or job.seq < 2 or plan.launcher.device == "cpu":
        return
    needed = predicted.memory
    growing = needed.activations + needed.logits - WORKSPACE_BYTES
    room = needed.available - needed.total
    if growing < SHARE * needed.total or room > LONGER * growing:
        return
    longest = int(job.seq * (1 + room / growing))
    yield Finding(
        code="MEM110",
        name="longest-batch-decides",
        severity="info",
        message=(
            f"activations and logits of {plan.samples} x {job.seq} tokens take {memory(growing)} of "
            f"{memory(needed.total)}, and go with each step; samples of more than about {longest} tokens do not fit in "
            f"{memory(needed.available)}"
        ),
        facts={"growing": int(growing), "total": needed.total, "longest": longest},
        remedy=f"if lengths vary, give the longest as --seq, and cut or pack what is longer than {longest} tokens",
    )

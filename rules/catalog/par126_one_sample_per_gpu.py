"""The global batch is as small as the number of GPUs: each has one sample per step.

## What it finds
A plan in which each rank computes one sample per optimizer step, and either GPUs are left over or a fifth of the step
is spent waiting for communication.

## Why it matters
One sample can't be split between ranks, so no more GPUs help; gradients are reduced after each sample, and there is
nothing to accumulate that could hide it.

## What to do
A larger global batch, with the learning rate that suits it, or fewer GPUs.

## Source
https://arxiv.org/abs/2205.10287 for the learning rate of Adam; the candidates of the same report
"""

from collections.abc import Iterator

from advisor.rules.alternatives import exposed_share
from advisor.rules.format import percent, plural
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.scaling import learning_rate

WAITING = 0.2  # of the step


@rule("PAR126", "one-sample-per-gpu")
def check(case: Case) -> Iterator[Finding]:
    plan, predicted, job = case.plan, case.predicted, case.job
    if plan is None or predicted is None or job is None or plan.ranks == 1 or job.global_batch != plan.ranks:
        return
    gpus = len(case.machine.gpus) * case.machine.nodes
    waiting = exposed_share(predicted)
    if plan.ranks == gpus and waiting < WAITING:
        return
    batch = 4 * gpus
    idle = f"; {gpus - plan.ranks} of {gpus} GPUs get none" if gpus > plan.ranks else ""
    yield Finding(
        code="PAR126",
        name="one-sample-per-gpu",
        severity="info",
        message=(
            f"a global batch of {plural(job.global_batch, 'sample')} is one on each of {plan.ranks} GPUs{idle}; "
            f"{percent(waiting)} of the step wait for communication"
        ),
        facts={"global_batch": job.global_batch, "ranks": plan.ranks, "gpus": gpus, "exposed_share": waiting},
        remedy=f"--global-batch {batch} ({learning_rate(job, batch)}) if the training bears it, else fewer GPUs",
    )

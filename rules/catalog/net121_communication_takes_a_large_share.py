"""Communication that nothing hides takes more than a fifth of the step.

## What it finds
A plan whose ranks wait for collectives for more than 20 % of the predicted step.

## Why it matters
It is the most that any change of strategy, links or settings could gain. Below that share the GPUs decide the speed,
and settings of NCCL can gain nothing.

## What to do
Send less: a larger batch per step (accumulation reduces once for several micro-batches), --allow bf16-gradients, or
fewer GPUs with better links. Send it faster: NVLink, RDMA. A larger bucket is no cure.

## Source
The prediction of the same report; docs/models.md
"""

from collections.abc import Iterator

from advisor.rules.format import percent, seconds
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

MUCH = 0.2


@rule("NET121", "communication-takes-a-large-share")
def check(case: Case) -> Iterator[Finding]:
    plan, cost = case.plan, case.predicted
    if plan is None or cost is None or plan.ranks == 1 or cost.step_seconds <= 0:
        return
    share = cost.exposed_communication_seconds / cost.step_seconds
    if share <= MUCH:
        return
    allow = case.job is not None and "bf16-gradients" not in case.job.allow and plan.gradient_dtype == "fp32"
    yield Finding(
        code="NET121",
        name="communication-takes-a-large-share",
        severity="info",
        message=(
            f"{seconds(cost.exposed_communication_seconds)} of a step of {seconds(cost.step_seconds)}, "
            f"{percent(share)}, are spent waiting for communication"
        ),
        facts={"exposed_seconds": cost.exposed_communication_seconds, "step_seconds": cost.step_seconds},
        remedy="a larger --global-batch reduces gradients less often" + ("; --allow bf16-gradients" if allow else ""),
    )

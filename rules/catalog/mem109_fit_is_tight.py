"""The plan fits with almost nothing to spare.

## What it finds
A plan on GPUs that needs more than 97 % of what it may use (which is 95 % of what is free).

## Why it matters
Measured peaks were up to 5 % above the predicted ones, which is why plans may use 95 %. What no model counts (a longer
evaluation batch, a metric, tensors that the script keeps) has no room then, and the run may fail hours after its start.

## What to do
Take a smaller micro-batch; the plan then needs about what the finding says. Or look at the measured peak, which
`advisor apply` reports.

## Source
docs/accuracy.md, predicted and measured peaks; docs/models.md, "Memory"
"""

from collections.abc import Iterator

from advisor.rules.format import memory, percent
from advisor.rules.memory import WORKSPACE_BYTES
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

TIGHT = 0.97  # of what is available


@rule("MEM109", "fit-is-tight")
def check(case: Case) -> Iterator[Finding]:
    plan, predicted = case.plan, case.predicted
    if plan is None or predicted is None or plan.launcher.device == "cpu":
        return
    needed = predicted.memory
    if needed.total < TIGHT * needed.available:
        return
    samples = plan.samples
    share = samples * plan.accumulation
    smaller = next((size for size in range(samples - 1, 0, -1) if share % size == 0), None)
    per_sample = max(0.0, needed.activations - WORKSPACE_BYTES + needed.logits) / samples
    if smaller is not None:
        less = int(needed.total - per_sample * (samples - smaller))
        remedy = f"--micro-batch {smaller} needs about {memory(less)} per rank"
    elif plan.activation_checkpointing == "none":
        remedy = "checkpoint activations, or use a shorter --seq"
    elif plan.activation_checkpointing == "selective":
        remedy = 'write activation_checkpointing="full" in the plan, or use a shorter --seq'
    else:
        remedy = "use a shorter --seq, or more GPUs"
    yield Finding(
        code="MEM109",
        name="fit-is-tight",
        severity="info",
        message=(
            f"{memory(needed.total)} of {memory(needed.available)} per rank leave "
            f"{percent((needed.available - needed.total) / needed.available)} for all that is not counted"
        ),
        facts={"total": needed.total, "available": needed.available},
        remedy=remedy,
    )

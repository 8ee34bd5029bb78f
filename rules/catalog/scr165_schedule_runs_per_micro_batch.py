"""The learning-rate schedule advances with each micro-batch, not with each step of the optimizer.

## What it finds
`scheduler.step()` in a loop that accumulates gradients, outside of the condition under which the optimizer steps.

## Why it matters
With 8 micro-batches per step the schedule runs 8 times too fast: warm-up is over after an eighth of its steps, and
the learning rate reaches its end early.

## What to do
Step the scheduler where the optimizer is stepped.

## Source
torch.optim.lr_scheduler, "should be applied after optimizer's update"
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.steps import windows

RULE = ("SCR165", "schedule-runs-per-micro-batch")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None:
        return
    for window in windows(case.source):
        for event in case.source.calls("<scheduler>.step"):
            if window.loop not in event.loops or event.loops[-1] is not window.loop:
                continue
            if window.boundary is not None and any(g.line == window.boundary.line for g in event.guards):
                continue
            if any(guard not in window.backward.guards for guard in event.guards):
                continue
            yield found(
                case,
                RULE,
                "warning",
                event,
                happens=f"the schedule advances with each micro-batch, the optimizer only in line {window.step.line}: "
                "the learning rate changes too fast",
                remedy=f"move it behind the optimizer's step in line {window.step.line}",
                step=window.step.line,
            )
            return

"""Each step waits for the GPU to tell a number.

## What it finds
`.item()`, `float()` or `print` of a loss in the innermost training loop, not under a condition such as
`if step % 50 == 0`.

## Why it matters
The host waits until the GPU has finished, so that it can't prepare the next step meanwhile. The GPU idles between
steps; it costs most with small models and many ranks, where each waits for the slowest.

## What to do
Add `loss.detach()` up on the GPU, and take `.item()` every 50 steps.

## Source
https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html, "Avoid unnecessary CPU-GPU synchronization"
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.value import Event

RULE = ("SCR167", "waits-for-gpu-each-step")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    source = case.source
    if source is None or not source.many_ranks:
        return
    waits = [event for event in source.events if _waits(event) and not event.alone]
    for backward in source.backwards:
        for event in waits:
            if not backward.loops or event.loops != backward.loops:
                continue
            if not any(guard not in backward.guards for guard in event.guards):
                yield found(
                    case,
                    RULE,
                    "info",
                    event,
                    happens="the host waits here for the GPU in each step, and can't prepare the next one meanwhile",
                    remedy="total += loss.detach(); every 50 steps: total.item()",
                )
                return


def _waits(event: Event) -> bool:
    """Say whether the host needs the value of a loss here."""
    if event.kind != "call":
        return False
    if event.name.endswith(".item"):
        return event.receiver is not None and event.receiver.role == "tensor"
    return event.name == "float" and any(value.role == "tensor" for value in event.args)

"""Gradients are clipped while they still carry the GradScaler's factor.

## What it finds
`clip_grad_norm_` or `clip_grad_value_` between `scaler.scale(loss).backward()` and `scaler.step(optimizer)`, without
`scaler.unscale_(optimizer)` before it; or `optimizer.step()` on gradients of a scaled loss.

## Why it matters
The scale is 65,536 at first: every gradient exceeds the limit and is cut to it, then divided by the scale: almost
nothing is left. Training is silently slow or does not move. A plain `optimizer.step()` takes steps that are as much
too large.

## What to do
`scaler.unscale_(optimizer)` before the clipping, and `scaler.step(optimizer)`, `scaler.update()` after it.

## Source
https://docs.pytorch.org/docs/stable/notes/amp_examples.html, "Gradient clipping"
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.source import Source
from advisor.rules.source.value import Event

RULE = ("SCR166", "scaled-gradients-clipped")
CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_", "<fsdp>.clip_grad_norm_")
SCALERS = ("<scaler>.step", "<sharded_scaler>.step")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    source = case.source
    if source is None:
        return
    seen: set[tuple[str, int]] = set()
    for backward in source.backwards:
        scaled = backward.receiver is not None and backward.receiver.name == "scaled"
        wrong = _next_wrong(source, backward) if scaled else None
        if wrong is None or (wrong.file, wrong.line) in seen:
            continue
        seen.add((wrong.file, wrong.line))
        clips = wrong.name in CLIPS
        yield found(
            case,
            RULE,
            "error",
            wrong,
            happens="gradients still carry the scaler's factor of up to 65,536: "
            + ("all of them are cut to the limit" if clips else "the step is too large by it"),
            remedy="scaler.unscale_(optimizer) in front of it" if clips else "scaler.step(optimizer); scaler.update()",
            backward=backward.line,
        )


def _next_wrong(source: Source, backward: Event) -> Event | None:
    """Return what handles scaled gradients as if they were not, before the scaler itself has seen them."""
    for event in source.events[backward.index + 1 :]:
        if event.kind != "call" or event.loops[: len(backward.loops) - 1] != backward.loops[:-1]:
            continue
        if event.name.endswith((".unscale_", ".backward")) or event.name in SCALERS:
            return None
        if event.name in CLIPS or event.name == "<optimizer>.step":
            return event
    return None

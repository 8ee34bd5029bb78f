"""A layer is defined and never used: the second step stops.

## What it finds
A layer assigned to `self` in the `__init__` of a module that DistributedDataParallel wraps, and named nowhere else in
the script. Silent with `find_unused_parameters=True` or `static_graph=True`.

## Why it matters
DDP waits for a gradient of each parameter. One that `forward` does not use gets none: "Expected to have finished
reduction in the prior iteration before starting a new one". On one GPU the same script is fine.

## What to do
Use the layer or remove it; `find_unused_parameters=True` where it really varies from step to step.

## Source
torch.nn.parallel.DistributedDataParallel, `find_unused_parameters`
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.layers import unused_layers
from advisor.rules.source.report import found
from advisor.rules.source.wraps import wraps

RULE = ("SCR116", "parameters-never-used")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    source = case.source
    if source is None:
        return
    reported: set[tuple[str, int]] = set()
    for wrap in wraps(source, "ddp"):
        if any(wrap.event.words.get(word) is not None for word in ("find_unused_parameters", "static_graph")) and any(
            wrap.says(word) is not False
            for word in ("find_unused_parameters", "static_graph")
            if word in wrap.event.words
        ):
            continue
        for layer in unused_layers(source, wrap.core):
            at = (layer.file, layer.line)
            if at in reported:
                continue
            reported.add(at)
            yield found(
                case,
                RULE,
                "error",
                at,
                happens=f"self.{layer.name} is never used, its parameters get no gradient, and DDP stops in the second "
                "step: 'Expected to have finished reduction in the prior iteration'",
                remedy=f"use self.{layer.name} in forward, or remove it",
                layer=layer.name,
            )

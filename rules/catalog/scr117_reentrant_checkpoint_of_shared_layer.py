"""A layer is checkpointed the reentrant way more than once per step under DistributedDataParallel.

## What it finds
`torch.utils.checkpoint.checkpoint` with `use_reentrant=True`, or without the argument, of a layer that is used
several times in one forward pass, in a model that DDP wraps without `static_graph=True`.

## Why it matters
Each reentrant backward pass marks the layer's parameters as ready: "Expected to mark a variable ready only once", in
the first step. On one GPU the same script is fine.

## What to do
`checkpoint(layer, x, use_reentrant=False)`; or `DistributedDataParallel(..., static_graph=True)` where the graph never
changes.

## Source
torch.nn.parallel.DistributedDataParallel, `static_graph`; https://docs.pytorch.org/docs/stable/checkpoint.html
"""

import ast
from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.source import Source
from advisor.rules.source.value import Event, Loop
from advisor.rules.source.wraps import wraps

RULE = ("SCR117", "reentrant-checkpoint-of-shared-layer")
CHECKPOINT = "torch.utils.checkpoint.checkpoint"


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    source = case.source
    if source is None:
        return
    wrapped = [wrap for wrap in wraps(source, "ddp") if "static_graph" not in wrap.event.words]
    if not wrapped or any(event.name.endswith("._set_static_graph") for event in source.events):
        return
    seen: set[tuple[str, int]] = set()
    for event in source.calls(CHECKPOINT):
        reentrant = event.words.get("use_reentrant")
        fixed = reentrant is not None and reentrant.const is not True
        if fixed or (event.file, event.line) in seen or not _shared(source, event):
            continue
        seen.add((event.file, event.line))
        yield found(
            case,
            RULE,
            "error",
            event,
            happens=f"this layer runs several times per step, and DDP (line {wrapped[0].event.line}) stops in the "
            "first one: 'Expected to mark a variable ready only once'",
            remedy="checkpoint(layer, x, use_reentrant=False), or static_graph=True for DistributedDataParallel",
            wrap=wrapped[0].event.line,
        )


def _shared(source: Source, event: Event) -> bool:
    """Say whether one forward pass runs the same layer more than once."""
    layer = event.argument("function", 0)
    if layer is None or not event.calls:
        return False
    around = [loop for loop in event.loops if loop.file == event.file and _inside_forward(loop, event)]
    if around and not any(_depends(event, loop) for loop in around):
        return True
    others = [o for o in source.calls(CHECKPOINT) if o.calls == event.calls and o.node is not event.node]
    return layer.role in ("model", "layer") and any(other.argument("function", 0) is layer for other in others)


def _inside_forward(loop: Loop, event: Event) -> bool:
    """Say whether a loop is in the function that makes the call."""
    training = event.calls[-1]
    return not (loop.line <= getattr(training, "lineno", 0) <= getattr(loop.node, "end_lineno", 0))


def _depends(event: Event, loop: Loop) -> bool:
    """Say whether the layer is another one in each round of the loop."""
    names = {node.id for node in ast.walk(getattr(loop.node, "target", ast.Pass())) if isinstance(node, ast.Name)}
    function = event.node.args[0] if isinstance(event.node, ast.Call) and event.node.args else event.node
    return any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(function))

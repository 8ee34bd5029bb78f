"""The optimizer holds the parameters as they were before FSDP replaced them.

## What it finds
An optimizer built from a model's parameters before FullyShardedDataParallel or `fully_shard` is applied to that model,
and stepped afterwards. DistributedDataParallel keeps the parameters, and so does FSDP with `use_orig_params=True`, so
that the order does not matter there.

## Why it matters
FSDP replaces the parameters by shards. The optimizer still updates the old tensors: the loss never moves, and nothing
says so. Its states are also as large as those of the whole model.

## What to do
Wrap first, then build the optimizer from the wrapped model's parameters.

## Source
https://docs.pytorch.org/docs/stable/fsdp.html, "The optimizer must be initialized after the module has been wrapped";
https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.source import Source
from advisor.rules.source.value import Event
from advisor.rules.source.wraps import owners, wraps

RULE = ("SCR111", "optimizer-before-sharding")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None:
        return
    reported: list[Event] = []
    if any(event.kind == "assign" and event.args and event.args[0].const == "params" for event in case.source.events):
        return  # the optimizer is given the new parameters
    for wrap in wraps(case.source, "fsdp", "fsdp2"):
        keeps = wrap.event.words.get("use_orig_params")
        if keeps is not None and keeps.const is not False:
            continue
        for event in _optimizers(case.source):
            early = event.index < wrap.at and wrap.core in owners(event.argument("params", 0))
            if not early or event in reported or not _stepped(case.source, event):
                continue
            reported.append(event)
            yield found(
                case,
                RULE,
                "error",
                event,
                happens=f"FSDP replaces the parameters in line {wrap.event.line}, and this optimizer keeps the old "
                "ones: the model never learns",
                remedy="build the optimizer behind the wrap: model = FSDP(model, ...); optimizer = "
                "AdamW(model.parameters(), ...)",
                wrap=wrap.event.line,
            )


def _optimizers(source: Source) -> Iterator[Event]:
    return (event for event in source.events if event.value.role == "optimizer" and event.value.node is event.node)


def _stepped(source: Source, made: Event) -> bool:
    """Say whether this optimizer is the one that trains, as far as is known."""
    steps = [event.receiver for event in source.calls("<optimizer>.step")]
    return not steps or any(made.value is step or (step and made.value in step.options) for step in steps)

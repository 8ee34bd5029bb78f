"""Frozen and trainable parameters are in one FSDP unit.

## What it finds
Parameters that are frozen in part (adapters, a head, some blocks) before FullyShardedDataParallel wraps the model
without `use_orig_params=True`.

## Why it matters
A unit is one flat tensor, which needs a gradient or does not: FSDP raises "Must flatten tensors with uniform
requires_grad when use_orig_params=False".

## What to do
Pass `use_orig_params=True`. It keeps gradient memory for the whole unit, as if nothing were frozen: for that, wrap
frozen and trained parts as separate units.

## Source
torch.distributed.fsdp.FullyShardedDataParallel, `use_orig_params`; https://github.com/pytorch/pytorch/issues/91165
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.source.report import found
from advisor.rules.source.source import Source
from advisor.rules.source.training import requires_grad_changes
from advisor.rules.source.wraps import Wrap, wraps

RULE = ("SCR120", "frozen-and-trained-in-one-unit")


@rule(*RULE)
def check(case: Case) -> Iterator[Finding]:
    if case.source is None:
        return
    for wrap in wraps(case.source, "fsdp"):
        keeps = wrap.event.words.get("use_orig_params")
        line = _mixed(case.source, wrap)
        if line is None or (keeps is not None and keeps.const is not False):
            continue
        yield found(
            case,
            RULE,
            "error",
            wrap.event,
            happens=f"some parameters are frozen (line {line}) and others trained: without use_orig_params=True a unit "
            "that holds both stops with 'Must flatten tensors with uniform requires_grad'",
            remedy="FSDP(model, ..., use_orig_params=True), and a wrap policy that puts frozen and trained parts in "
            "units of their own: otherwise gradient memory is that of an unfrozen model",
            frozen=line,
        )


def _mixed(source: Source, wrap: Wrap) -> int | None:
    """Return the line that leaves a model frozen in part; None where it is whole, or its units may be uniform."""
    changes = [change for change in requires_grad_changes(source) if wrap.core in change.models]
    before = [change for change in changes if change.event.index < wrap.at]
    frozen = [change for change in before if not change.trains]
    if not frozen:
        return _adapters(source, wrap)
    partly = [change for change in before if change.trains or change.some]
    units = wrap.event.words.get("auto_wrap_policy")
    in_one_unit = units is None or units.const is None
    if partly or (in_one_unit and any(change.part for change in frozen)):
        return (partly or frozen)[0].event.line
    return None


def _adapters(source: Source, wrap: Wrap) -> int | None:
    """Return the line that adds adapters to a frozen model, where no wrap policy is made for them."""
    policy = wrap.event.words.get("auto_wrap_policy")
    known = policy is not None and ("lambda" in policy.name or "peft" in policy.name or not policy.name)
    made = [event for event in source.calls("peft.get_peft_model") if event.value.core is wrap.core]
    return made[0].line if made and not known else None

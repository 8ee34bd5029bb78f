"""What is known after a branch: of a condition which ranks take it, of a value which of two it may be."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from advisor.rules.source.value import (
    CLOCK,
    DATA,
    LOCAL_RANK,
    LONE,
    NOTHING,
    RANK,
    REDUCED,
    SHARDED,
    UNKNOWN,
    WRAPPED,
    Guard,
    Value,
)

if TYPE_CHECKING:
    from advisor.rules.source.walk import Walk

OPPOSITES = {"first": "others", "others": "first", "distributed": "alone", "alone": "distributed"}
BY_RANK = frozenset({RANK, LOCAL_RANK, LONE})


def negated(split: str) -> str:
    return OPPOSITES.get(split, split)


def opposite(condition: Value) -> str:
    """Return which ranks the opposite of a condition is true on."""
    return "unsure" if condition.partly and condition.split in ("first", "others", "some") else negated(condition.split)


def conjunction(values: Sequence[Value]) -> str:
    """Return which ranks an `and` of conditions lets through."""
    splits = {value.split for value in values} - {""}
    if "alone" in splits:
        return "alone"
    by_rank = splits - {"distributed"}
    if not by_rank:
        return "distributed" if len(splits) == len(values) and splits else ""
    return next((split for split in ("first", "some", "others", "unsure") if split in by_rank), "")


def disjunction(values: Sequence[Value]) -> str:
    """Return which ranks an `or` of conditions lets through; `not distributed or rank == 0` is rank 0."""
    splits = {value.split for value in values}
    if splits <= {"alone", "first"}:
        return "first" if "first" in splits else "alone"
    if len(splits) == 1:
        return next(iter(splits))
    return "unsure" if splits & {"first", "others", "some", "unsure"} else ""


def reason(guard_value: Value, split: str) -> frozenset[str]:
    """Return how ranks come to differ by taking a branch or not."""
    if split in ("distributed", "alone"):
        return NOTHING
    taint = guard_value.taint
    found = {LONE} if taint & BY_RANK and split else set()
    return frozenset(found | (taint & {DATA, CLOCK}))


def joined(walk: "Walk", ends: list[dict[str, Value]], test: Value, start: dict[str, Value]) -> dict[str, Value]:
    """Merge what names stand for at the ends of both branches."""
    yes, no = ends
    merged = dict(yes)
    split = test.split
    differ = reason(test, split)
    for name in no.keys() - yes.keys():
        merged[name] = _marked(no[name], differ, split)
    for name, value in yes.items():
        other = no.get(name)
        if other is value:
            continue
        if other is None:
            merged[name] = _marked(value, differ, split) if name not in start else value
        elif split in ("distributed", "alone"):
            merged[name] = value if split == "distributed" else other
        else:
            merged[name] = _marked(either(walk, other, value), differ, split)
    return merged


def _marked(value: Value, differ: frozenset[str], split: str) -> Value:
    if not differ or (value.role and value.role not in ("tracker", "tensor", "clock")):
        return value
    if REDUCED in value.taint and not differ & {DATA, CLOCK}:
        return value
    told = split if LONE in differ and split in ("first", "others", "some") else value.split
    return value.changed(taint=(value.taint - {REDUCED}) | differ, split=told)


def under_guards(value: Value, guards: Sequence[Guard]) -> Value:
    """Return what a function gives back where it does so under conditions."""
    for guard in guards:
        if value.split or value.role or guard.handler or (guard.rest and isinstance(value.const, bool)):
            continue
        if value.const is True and guard.split in ("first", "others", "some", "distributed"):
            value = value.changed(split=guard.split, taint=guard.taint, const=UNKNOWN)
        elif value.const is False and guard.split in OPPOSITES and guard.split != "alone":
            value = value.changed(split=negated(guard.split), taint=guard.taint, const=UNKNOWN)
        else:
            value = _marked(value, reason(guard.value, guard.split), guard.split)
    return value


def _weight(value: Value) -> int:
    """Rank what a value may be: the more it has to do with training on many GPUs, the heavier."""
    if value.role in WRAPPED or value.role in ("sampler", "rank", "local_rank") or value.split in ("first", "others"):
        return 5 + (value.role in SHARDED)
    if value.role == "loader":
        sampler = value.argument("sampler")
        return 5 if sampler is not None and sampler.role == "sampler" else 4
    if value.role or value.code is not None:
        return 3
    if value.const is None:
        return 0
    return 2 if value.name or value.items is not None or not value.known else 1


def either(walk: "Walk", first: Value, second: Value) -> Value:
    """Return one value for two that a name may stand for: the heavier, or the later."""
    if first is second:
        return second
    chosen, other = (first, second) if _weight(first) > _weight(second) else (second, first)
    clean = [value for value in (first, second) if REDUCED in value.taint and not value.taint & {DATA, LONE, CLOCK}]
    if clean:
        return clean[-1]
    taint = chosen.taint if chosen.role or chosen.split else chosen.taint | (other.taint & {DATA, LONE, CLOCK})
    const = chosen.const if chosen.const == other.const or (chosen.role and not chosen.known) else UNKNOWN
    if other.const is None and chosen.const is not None:
        const = chosen.const
    split = chosen.split or other.split
    told = chosen.role or other.role or (isinstance(chosen.const, str) and isinstance(other.const, str))
    options = () if other.const is None or not told else (*chosen.options, other)
    if told and not chosen.role and const is UNKNOWN and chosen.known:
        options = (chosen, *options)
    unchanged = taint == chosen.taint and split == chosen.split and not options
    if unchanged and (const is chosen.const or chosen.const is UNKNOWN):
        return chosen
    if chosen.role and taint == chosen.taint:
        if options and other not in chosen.options and len(chosen.options) < 4:
            chosen.options = (*chosen.options, other)
        return chosen
    return chosen.changed(taint=taint, const=const, split=split, options=options[:4])


def join_all(walk: "Walk", values: Sequence[Value]) -> Value | None:
    result: Value | None = None
    for value in values:
        result = value if result is None else either(walk, result, value)
    return result


def certain(walk: "Walk", depth: int) -> bool:
    """Say whether an assignment here surely happens in each run on several ranks."""
    return all(guard.split == "distributed" or guard.rest for guard in walk.guards[depth:])

"""Two sources of one machine say different things.

## What it finds
A fact that two of the sources given with `--machine`, or two parts of one text, state differently: another link between
two GPUs, another amount of memory, another driver.

## Why it matters
One of them is of another machine, of another time or of another view (a container, a virtual machine, CUDA's order of
the GPUs). The plan rests on the first source, so it may be for a machine that does not exist.

## What to do
Take all texts on the machine itself, one after the other, from the same shell, or leave the wrong one out.

## Source
The texts themselves; `nvidia-smi topo -mp`, which hides NVLink, is known not to contradict `topo -m`.
"""

from collections.abc import Callable, Iterator

from advisor.rules.format import bandwidth, binary, ids
from advisor.rules.machine import Contradiction
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

Pair = tuple[str, str]  # of the first source and of the second

# Fields that are stored in base units; binary, since 80 GB and 80 GiB are what sources confuse.
UNITS: dict[str, Callable[[int], str]] = {"memory": binary, "shm": binary, "bandwidth": bandwidth}


@rule("ENV104", "sources-contradict")
def check(case: Case) -> Iterator[Finding]:
    for (field, sources, values), devices in _alike(case.machine.contradictions).items():
        what = f"{field} of {ids(devices)}" if field else ids(devices)
        first, second = (_in_units(field, value) for value in values)
        yield Finding(
            code="ENV104",
            name="sources-contradict",
            severity="warning",
            message=f"{what}: {first} in {sources[0]}, {second} in {sources[1]}; the first was taken",
            facts={"what": what, "first": values[0], "second": values[1]},
            remedy=f"take both from the same machine, or leave {sources[1]} out",
        )


def _in_units(field: str, value: str) -> str:
    unit = UNITS.get(field)
    return unit(int(float(value))) if unit else value


def _alike(contradictions: tuple[Contradiction, ...]) -> dict[tuple[str, Pair, Pair], list[str]]:
    """Put the devices together of which the same sources say the same two things."""
    alike: dict[tuple[str, Pair, Pair], list[str]] = {}
    for contradiction in contradictions:
        device, _, field = contradiction.what.partition(".")
        alike.setdefault((field, contradiction.sources, contradiction.values), []).append(device)
    return alike

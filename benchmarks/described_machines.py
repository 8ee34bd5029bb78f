"""Write docs/described-machines.md: the words of descriptions and the machines that have a name.

python benchmarks/described_machines.py > docs/described-machines.md
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from advisor.probe import described
from advisor.probe.instances import NamedMachine, named_machines

HEAD = """# Described machines

Made by `python benchmarks/described_machines.py`; a test compares. `--machine` takes the name of a machine, a number of
such hosts (`2x p5.48xlarge`, `4 nodes of dgx h100`), or words.

    advisor probe --machine p4d.24xlarge
    advisor recommend --params 13e9 --machine "2x8 h100 nvswitch, ib 8x400"
    advisor probe --machine list

## Words
"""
NAMES = """
## Names

Case, spaces, `_`, `-` and `.` in a name do not matter, nor does a leading vendor or `Standard_`. Each machine is built
from its words. Prices are in US dollars an hour for one host, on demand; where no list at hand names a price there is
none. The sources stand in `advisor/probe/instances.toml`; what only one page or nobody confirmed is marked *unverified*
there.
"""


def page() -> str:
    """Return the whole page."""
    _, grammar = (described.__doc__ or "").split("Grammar: ", 1)
    return "\n".join([HEAD, f"Grammar: {grammar.rstrip()}", NAMES, *tables(named_machines()), ""])


def tables(machines: Sequence[NamedMachine]) -> Iterator[str]:
    """Yield the lines of a table for each vendor."""
    for vendor, group in groupby(machines, key=lambda machine: machine.vendor):
        yield f"### {vendor}\n\n| name | words | $/hour |\n|---|---|--:|"
        yield from map(row, group)
        yield ""


def row(machine: NamedMachine) -> str:
    """Return a machine's row."""
    names = "<br>".join((machine.name, *machine.also))
    words = f"{machine.description}<br>*{machine.note}*" if machine.note else machine.description
    price = machine.price
    cost = f"{price.dollars_per_hour:.2f}<br>{price.region}, {price.date}" if price else ""
    return f"| {names} | {words} | {cost} |"


if __name__ == "__main__":
    print(page(), end="")

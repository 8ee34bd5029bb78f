"""Compare the machines read from texts with the truth beside them, field by field.

Run: python benchmarks/topologies.py PATH...: folders, or files of which NAME.json holds the truth about NAME.txt or
NAME.xml. A text whose truth has no GPUs is right if it is refused with a clear error, or read as a machine without
GPUs of which every field is right. The last line is a JSON object of counts.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from advisor.probe.text.readers import machine_from_text
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Machine

Fields = dict[str, Any]


class Outcome(NamedTuple):
    """What reading one text gave; `right` and `wrong` name fields of its truth."""

    name: str
    right: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    refused: str = ""  # the words of the error, where there is to be one
    crash: str = ""

    @property
    def exact(self) -> bool:
        return not self.wrong and not self.crash

    @property
    def words(self) -> str:
        if self.crash:
            return f"CRASH {self.crash}"
        if self.wrong:
            return f"wrong: {', '.join(self.wrong)}"
        return f"refused: {self.refused}" if self.refused else "exact"


def judge(truth_file: Path) -> Outcome:
    """Read the text beside a truth file and compare every field that the truth has and the text can hold."""
    truth: Fields = json.loads(truth_file.read_bytes())
    text_file = next((f for s in (".txt", ".xml") if (f := truth_file.with_suffix(s)).exists()), None)
    if text_file is None:
        raise SystemExit(f"there is no text beside {truth_file}")
    text = text_file.read_bytes().decode(errors="replace")
    wanted = expected(truth, text)
    try:
        machine = machine_from_text(text, text_file.name)
    except AdvisorError as error:
        if truth["gpus"]:
            return Outcome(text_file.name, wrong=tuple(wanted))
        return Outcome(text_file.name, right=("gpus",), refused=error.message)
    except Exception as error:  # any other exception would be a traceback for the user
        return Outcome(text_file.name, wrong=tuple(wanted), crash=repr(error))
    got = {name: FOUND[truth["kind"]][name](machine) for name in wanted}
    if "links" in got:
        got["links"] = [link for link in got["links"] if _is_in_view(link, truth)]
    right = tuple(name for name, value in wanted.items() if got[name] == value)
    return Outcome(text_file.name, right, tuple(name for name in wanted if name not in right))


def expected(truth: Fields, text: str) -> Fields:
    """Return the fields of the truth as far as the text can hold them: no names that only its author knew."""
    fields = {name: truth[name] for name in FOUND[truth["kind"]] if name in truth}
    if "nic_names" in fields:
        fields["nic_names"] = {nic: name for nic, name in fields["nic_names"].items() if name in text}
    for name, shown in (("driver", f"{truth.get('driver')}"), ("capability", "-p2p ")):
        if name in fields and shown not in text:
            del fields[name]
    return {name: _plain(name, value) for name, value in fields.items() if name != "nic_names" or value}


def _is_in_view(link: list[str], truth: Fields) -> bool:
    """Leave out a pair of which the truth says, as `columns-cut-at-9-of-12`, that it was made without both columns."""
    cuts = [
        match for quirk in truth.get("quirks", ()) if (match := re.fullmatch(r"columns-cut-at-(\d+)-of-\d+", quirk))
    ]
    numbers = [int(end.removeprefix("GPU")) for end in link[:2] if end.startswith("GPU")]
    return not cuts or min(numbers) < int(cuts[0][1])


def _plain(name: str, value: Any) -> Any:
    """Write a truth as a machine has it: without cells that are blank and columns that are not there."""
    if name in ("links", "weight", "hops", "status_directed"):
        return sorted(value or [])
    if name == "affinity_hex":
        return {node: _processors(mask) for node, mask in (value or {}).items()}
    if name == "nvlinks":
        return sorted([a, b, count, _kind_of_class(pci_class)] for a, b, count, pci_class in value or [])
    if name == "gbytes_per_s_per_link":
        return {gpu: {link: speed for link, speed in links.items() if speed} for gpu, links in (value or {}).items()}
    if value is None:
        return {}
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


def _processors(mask: str | None) -> list[int] | None:
    number = int(mask.replace(",", ""), 16) if mask else 0
    return [bit for bit in range(number.bit_length()) if number >> bit & 1] or None


def _kind_of_class(pci_class: str) -> str | None:
    kinds = (("0x068001", "cpu"), ("0x0680", "switch"), ("0x0302", "gpu"), ("0x0300", "gpu"))
    return next((kind for beginning, kind in kinds if pci_class.startswith(beginning)), None)


def _by_gpu(name: str) -> Callable[[Machine], Fields]:
    """Make a function that returns a field of each GPU that has it."""
    return lambda machine: {
        gpu.id: list(value) if isinstance(value, tuple) else value
        for gpu in machine.gpus
        if (value := getattr(gpu, name)) is not None
    }


def _distances(name: str) -> Callable[[Machine], list[list[Any]]]:
    """Make a function that returns a field of each two AMD GPUs of which it is told."""
    return lambda machine: sorted(
        [d.a, d.b, value] for d in machine.distances if (value := getattr(d, name)) is not None
    )


def _link_speeds(machine: Machine) -> Fields:
    return {
        gpu.id: {str(link.number): link.bandwidth / 1e9 for link in gpu.nvlinks or () if link.bandwidth}
        for gpu in machine.gpus
    }


def _link_ends(machine: Machine) -> list[list[Any]]:
    ends = Counter((gpu.bus_id, link.remote, link.remote_kind) for gpu in machine.gpus for link in gpu.nvlinks or ())
    return sorted([bus, remote, count, kind] for (bus, remote, kind), count in ends.items())


def _capability(machine: Machine) -> str:
    return "".join(dict.fromkeys(access.capability[0] for access in machine.peer_access))


# The fields of a truth file of each kind, and where a machine has them.
FOUND: dict[str, dict[str, Callable[[Machine], Any]]] = {
    "topo-m": {
        "gpus": lambda machine: len(machine.gpus),
        "nics": lambda machine: len(machine.nics),
        "links": lambda machine: sorted([link.a, link.b, link.code] for link in machine.links),
        "cpu_affinity": _by_gpu("cpu_affinity"),
        "numa": _by_gpu("numa"),
        "gpu_numa_id": _by_gpu("gpu_numa_id"),
        "nic_names": lambda machine: {nic.id: nic.name for nic in machine.nics if nic.name is not None},
        "driver": lambda machine: machine.software.driver,
    },
    "topo-p2p": {
        "gpus": lambda machine: len(machine.gpus),
        "capability": _capability,
        "status_directed": lambda machine: sorted([p.a, p.b, p.status] for p in machine.peer_access),
    },
    "nvlink-status": {
        "gpus": lambda machine: len(machine.gpus),
        "gbytes_per_s_per_link": _link_speeds,
    },
    "rocm-showtopo": {
        "gpus": lambda machine: len(machine.gpus),
        "weight": _distances("weight"),
        "hops": _distances("hops"),
        "links": _distances("link_type"),
        "numa": _by_gpu("numa"),
        "numa_affinity": _by_gpu("numa_affinity"),
    },
    "nccl-xml": {
        "gpus": lambda machine: len(machine.gpus),
        "nics": lambda machine: len(machine.nics),
        "nvlinks": _link_ends,
        "numa": lambda machine: {gpu.bus_id: gpu.numa for gpu in machine.gpus if gpu.numa is not None},
        "affinity_hex": lambda machine: {str(n.id): list(n.cpus) if n.cpus else None for n in machine.numa_nodes},
    },
}


def truth_files(paths: list[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        yield from sorted(path.glob("*.json")) if path.is_dir() else [path.with_suffix(".json")]


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("usage: python benchmarks/topologies.py PATH...")
    outcomes = [judge(file) for file in truth_files(sys.argv[1:])]
    for outcome in outcomes:
        share = f"{len(outcome.right)}/{len(outcome.right) + len(outcome.wrong)}"
        print(f"{outcome.name:48} {share:>5}  {outcome.words}")
    right = sum(len(outcome.right) for outcome in outcomes)
    summary = {
        "files": len(outcomes),
        "exact": sum(outcome.exact for outcome in outcomes),
        "fields": right + sum(len(outcome.wrong) for outcome in outcomes),
        "fields_right": right,
        "crashes": sum(bool(outcome.crash) for outcome in outcomes),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()

"""Compare the machines read from texts with the truth beside them, field by field.

Run: python benchmarks/topologies.py PATH...: folders, or files of which NAME.json holds the truth about NAME.txt or
NAME.xml. Only link matrices (kind `topo-m`) are read so far: another kind is right if it is refused with a clear error,
and so is a text whose truth has no GPUs. The last line is a JSON object of counts.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from advisor.probe.load import load_machine
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Machine

Fields = dict[str, Any]


class Outcome(NamedTuple):
    """What reading one text gave; `right` and `wrong` name fields of its truth."""

    name: str
    counted: bool  # False: of a kind that is not read yet
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
        if not self.counted:
            return f"not read yet: {self.refused}"
        return f"refused: {self.refused}" if self.refused else "exact"


def judge(truth_file: Path) -> Outcome:
    """Read the text beside a truth file and compare every field that the truth has and the text can hold."""
    truth: Fields = json.loads(truth_file.read_bytes())
    text_file = next((f for s in (".txt", ".xml") if (f := truth_file.with_suffix(s)).exists()), None)
    if text_file is None:
        raise SystemExit(f"there is no text beside {truth_file}")
    counted = truth["kind"] == "topo-m"
    try:
        machine = load_machine(str(text_file))
    except AdvisorError as error:
        if counted and truth["gpus"]:
            return Outcome(text_file.name, counted, wrong=tuple(expected(truth, "")))
        right = ("gpus",) if counted else ()
        return Outcome(text_file.name, counted, right=right, refused=error.message.removeprefix(f"{text_file}: "))
    except Exception as error:  # any other exception would be a traceback for the user
        wrong = tuple(expected(truth, "")) if counted else ()
        return Outcome(text_file.name, counted, wrong=wrong, crash=repr(error))
    if not counted:
        return Outcome(text_file.name, counted, wrong=("read as a link matrix",))
    wanted, got = expected(truth, text_file.read_text(errors="replace")), found(machine)
    right = tuple(name for name, value in wanted.items() if got[name] == value)
    return Outcome(text_file.name, counted, right, tuple(name for name in wanted if name not in right))


def expected(truth: Fields, text: str) -> Fields:
    """Return the fields of the truth as far as the text can hold them: no names that only its author knew."""
    names = ("gpus", "nics", "links", "cpu_affinity", "numa", "gpu_numa_id")
    fields = {name: truth[name] for name in names if name in truth}
    if nic_names := {nic: name for nic, name in truth.get("nic_names", {}).items() if name in text}:
        fields["nic_names"] = nic_names
    if truth.get("driver") and truth["driver"] in text:
        fields["driver"] = truth["driver"]
    return {name: _plain(value) for name, value in fields.items()}


def found(machine: Machine) -> Fields:
    """Return a machine in the fields of a truth file."""
    return {
        "gpus": len(machine.gpus),
        "nics": len(machine.nics),
        "links": [[link.a, link.b, link.code] for link in machine.links],
        "cpu_affinity": {gpu.id: list(gpu.cpu_affinity) for gpu in machine.gpus if gpu.cpu_affinity is not None},
        "numa": {
            gpu.id: list(gpu.numa) if isinstance(gpu.numa, tuple) else gpu.numa
            for gpu in machine.gpus
            if gpu.numa is not None
        },
        "gpu_numa_id": {gpu.id: gpu.gpu_numa_id for gpu in machine.gpus if gpu.gpu_numa_id is not None},
        "nic_names": {nic.id: nic.name for nic in machine.nics if nic.name is not None},
        "driver": machine.software.driver,
    }


def _plain(value: Any) -> Any:
    """Leave out what a machine keeps as None: a column that is not there, a cell that is blank."""
    if value is None:
        return {}
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


def truth_files(paths: list[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        yield from sorted(path.glob("*.json")) if path.is_dir() else [path.with_suffix(".json")]


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("usage: python benchmarks/topologies.py PATH...")
    outcomes = [judge(file) for file in truth_files(sys.argv[1:])]
    for outcome in outcomes:
        share = f"{len(outcome.right)}/{len(outcome.right) + len(outcome.wrong)}" if outcome.counted else "-"
        print(f"{outcome.name:48} {share:>5}  {outcome.words}")
    counted = [outcome for outcome in outcomes if outcome.counted]
    right = sum(len(outcome.right) for outcome in counted)
    summary = {
        "files": len(counted),
        "exact": sum(outcome.exact for outcome in counted),
        "fields": right + sum(len(outcome.wrong) for outcome in counted),
        "fields_right": right,
        "crashes": sum(bool(outcome.crash) for outcome in outcomes),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()

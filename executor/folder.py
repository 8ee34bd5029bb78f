"""The folder of one run: where it lies and what it holds."""

import contextlib
import datetime
import itertools
import os
from pathlib import Path

from advisor.rules.errors import AdvisorError

RUNS = Path("advisor-runs")


class RunFolder:
    """Holds `plan.json`, `ranks/<rank>.jsonl`, `logs/<rank>.out` and `.err`, and at the end `report.json`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan = path / "plan.json"
        self.ranks = path / "ranks"
        self.logs = path / "logs"
        self.torchrun_log = self.logs / "torchrun.err"
        self.calibration = path / "calibration.json"  # where the plan was chosen by trials
        self.report = path / "report.json"
        self.alive = path / "alive.json"  # while the run lives

    def create(self) -> None:
        """Make the folder and its sub-folders. Raises AdvisorError where something lies there already."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if any(self.path.iterdir()):
                raise AdvisorError(f"{self.path} is not empty", "give --run-dir a new folder, or remove this one first")
            self.ranks.mkdir()
            self.logs.mkdir()
        except OSError as error:
            hint = "give --run-dir a folder that you may write to"
            raise AdvisorError(f"can't make the run folder {self.path}: {error.strerror}", hint) from error


def choose_folder(given: Path | None, script: str | os.PathLike[str], now: datetime.datetime) -> RunFolder:
    """Return the given folder, or a new name below advisor-runs/ made of the time and the script's name."""
    if given is not None:
        return RunFolder(given)
    name = f"{now:%Y%m%d-%H%M%S}-{Path(script).stem}"
    names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
    return RunFolder(next(path for path in map(RUNS.joinpath, names) if not path.exists()))


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that nobody ever sees half of it: a temporary file beside it, renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise

"""Seconds of whole commands, start-up included, beside `import networkx` and `import torch` on the same machine.

Run: python benchmarks/startup.py [RUNS]. The commands are run in turn, so that all of them see the same machine.
The last line is a JSON object of medians in seconds.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
MACHINES = ROOT / "fixtures" / "machines"
MACHINE = str(MACHINES / "4xa10g-pcie3x8.json")
ADVISOR = ["-m", "advisor"]

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import networkx": ["-c", "import networkx"],
    "advisor --help": [*ADVISOR, "--help"],
    "advisor probe": [*ADVISOR, "probe", "-q"],
    "advisor probe, saved 8 x H100": [*ADVISOR, "probe", "--machine", str(MACHINES / "8xh100-nvswitch.json")],
    "advisor recommend, JSON": [*ADVISOR, "recommend", "--params", "1.3e9", "--machine", MACHINE, "--json"],
    "advisor recommend, report": [*ADVISOR, "recommend", "--params", "1.3e9", "--machine", MACHINE],
    "advisor recommend, 1024 x 8 GPUs": [
        *ADVISOR,
        *("recommend", "--params", "13e9", "--machine", "1024x8 h100 nvswitch, ib 8x400", "--json"),
    ],
}


def seconds(arguments: list[str]) -> float:
    """Return the wall time of one run of this Python with the arguments."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], capture_output=True, cwd=ROOT.parent, check=False)
    elapsed = time.perf_counter() - start
    if done.returncode > 1:
        raise SystemExit(done.stderr.decode())
    return elapsed


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    for arguments in COMMANDS.values():
        seconds(arguments)  # compiles what is not compiled yet
    rounds = [{name: seconds(arguments) for name, arguments in COMMANDS.items()} for _ in range(runs)]
    medians = {name: statistics.median(r[name] for r in rounds) for name in COMMANDS}
    print(f"{'':36}{'median':>9}{'lowest':>9}{'highest':>9}   against import networkx, pair by pair")
    for name, median in medians.items():
        times = [r[name] for r in rounds]
        ratio = statistics.median(r[name] / r["import networkx"] for r in rounds)
        print(f"{name:36}{median * 1e3:6.0f} ms{min(times) * 1e3:6.0f} ms{max(times) * 1e3:6.0f} ms   {ratio:.2f}")
    print(json.dumps({name: round(median, 4) for name, median in medians.items()}))


if __name__ == "__main__":
    main()

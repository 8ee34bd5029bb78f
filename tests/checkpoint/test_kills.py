"""A few random kills; benchmarks/checkpoint_kills.py does many."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = Path(__file__).parents[2] / "benchmarks" / "checkpoint_kills.py"


@pytest.mark.slow
def test_processes_killed_while_they_save_lose_nothing() -> None:
    done = subprocess.run([sys.executable, KILLS, "6", "2"], capture_output=True, text=True, timeout=100, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["kills"], said["lost"]) == (6, 0), done.stdout
    assert said["saves"] > 0

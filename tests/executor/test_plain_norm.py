"""Batch normalisation of a plain script's ranks: that of the whole batch, in all that comes of it."""

import subprocess
import sys
from pathlib import Path

import pytest

from advisor.executor.forked import free_port

CASES = Path(__file__).with_name("normalises.py")
SECONDS = 120  # far more than it takes


@pytest.mark.slow
def test_two_ranks_normalise_by_the_whole_batch() -> None:
    command = [sys.executable, str(CASES), str(free_port()), "cpu"]
    result = subprocess.run(command, capture_output=True, timeout=SECONDS, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("equal") == 26, result.stdout

"""Programs that save and load, run as one process or by torchrun with gloo."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SECONDS = 100  # far more than anything here takes


class Programs:
    """Runs a program of this folder on some ranks."""

    @staticmethod
    def start(ranks: int, program: str, *arguments: object) -> "subprocess.Popen[str]":
        torchrun = ["-P", "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        return subprocess.Popen(
            [sys.executable, *(torchrun if ranks > 1 else []), str(HERE / program), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )

    @classmethod
    def run(cls, ranks: int, program: str, *arguments: object) -> tuple[str, str, int]:
        process = cls.start(ranks, program, *arguments)
        try:
            out, err = process.communicate(timeout=SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
        return out, err, process.returncode


@pytest.fixture
def programs() -> Any:
    return Programs

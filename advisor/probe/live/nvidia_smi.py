"""Ask the `nvidia-smi` program for the link matrix: only it tells which path joins a GPU and a network card."""

import subprocess

from advisor.probe.text.topo_m import machine_from_topo_m
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import LIVE, Machine

COMMAND = ["nvidia-smi", "topo", "-m"]
SHOWN = " ".join(COMMAND)
TIMEOUT = 30  # seconds; without persistence mode the driver starts each GPU first


def read_matrix() -> tuple[Machine | None, str]:
    """Return the devices and links that `nvidia-smi topo -m` prints, or None and why there are none."""
    text, why = _run()
    if text is None:
        return None, why
    try:
        return machine_from_topo_m(text, LIVE), ""
    except AdvisorError as error:
        return None, f"`{SHOWN}`: {error.message}"


def _run() -> tuple[str | None, str]:
    try:
        done = subprocess.run(COMMAND, capture_output=True, timeout=TIMEOUT, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return None, "the program nvidia-smi is not on PATH; it comes with the NVIDIA driver"
    except subprocess.TimeoutExpired:
        return None, f"`{SHOWN}` gave no answer within {TIMEOUT} s; see `dmesg | grep -i xid`"
    except OSError as error:
        return None, f"nvidia-smi can't be run: {error.strerror}"
    text = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        said = (text + done.stderr.decode(errors="replace")).strip().splitlines() or ["nothing"]
        return None, f"`{SHOWN}` failed with exit code {done.returncode} and said: {said[0]}"
    return text, ""

"""NVML's Python module, with the one GPU of a machine listed twice."""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

GPUS = 2

_here = str(Path(__file__).parent)
_spec = PathFinder.find_spec("pynvml", [path for path in sys.path if path != _here])
assert _spec is not None
assert _spec.loader is not None
_real = module_from_spec(_spec)
_spec.loader.exec_module(_real)
globals().update({name: value for name, value in vars(_real).items() if not name.startswith("__")})


def nvmlDeviceGetCount() -> int:  # noqa: N802 - NVML's name
    return GPUS


def nvmlDeviceGetHandleByIndex(index: int) -> Any:  # noqa: N802
    if index >= GPUS:
        raise _real.NVMLError(_real.NVML_ERROR_INVALID_ARGUMENT)
    return _real.nvmlDeviceGetHandleByIndex(0)

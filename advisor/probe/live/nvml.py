"""The one door to NVML, NVIDIA's management library.

`query` answers with a value, or with the reason why there is none: a missing driver, a virtual machine that hides a
fact, an older library. No NVML error leaves this file.
"""

import atexit
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """A value, or why it is unknown."""

    value: Any = None
    why: str | None = None
    absent: bool = False  # this kind of GPU, or this driver, has no such fact: nothing that a user need know


ABSENT = (2, 3, 13)  # nvmlReturn_t: invalid argument (no such link), not supported, function not found
NO_LIBRARY = "libnvidia-ml.so.1, a part of the NVIDIA driver, is not installed"

# What to do about the ways in which NVML fails to start, by its error numbers (nvml.h, nvmlReturn_t).
START_ERRORS = {
    4: "no permission to use the NVIDIA driver; the user needs access to /dev/nvidiactl and /dev/nvidia*",
    9: "the NVIDIA kernel driver is not loaded; try `sudo modprobe nvidia`, and see `dmesg | grep -i nvrm`",
    12: NO_LIBRARY,
    18: "the NVIDIA driver was updated while the old one is still loaded; restart the machine or the container",
}


def query(function: str, *args: Any) -> Answer:
    """Call an NVML function by its name in `pynvml`; the first call starts NVML."""
    library, why = _start()
    if library is None:
        return Answer(why=why)
    call = getattr(library, function, None)
    if call is None:
        return Answer(why=f"the installed nvidia-ml-py has no {function}; update it", absent=True)
    try:
        value = call(*args)
    except library.NVMLError as error:
        return Answer(why=f"NVML: {error}", absent=error.value in ABSENT)
    return Answer(value.decode(errors="replace") if isinstance(value, bytes) else value)


def record(name: str) -> Any:
    """Make an empty record for a function that fills one, by its type's name in `pynvml`; None if there is none."""
    library, _ = _start()
    kind = getattr(library, name, None)
    return kind() if kind is not None else None


def shutdown() -> None:
    """End the NVML session; the next query starts another."""
    if not _start.cache_info().currsize:
        return
    library, _ = _start()
    _start.cache_clear()
    atexit.unregister(shutdown)
    if library is None:
        return
    try:
        library.nvmlShutdown()
    except library.NVMLError:
        return  # the driver went away meanwhile: nothing is left to end


@cache
def _start() -> tuple[ModuleType | None, str]:
    try:
        import pynvml
    except ImportError:
        return None, "the Python package nvidia-ml-py is not installed; try `pip install nvidia-ml-py`"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, START_ERRORS.get(error.value, f"NVML does not start: {error}")
    atexit.register(shutdown)
    return pynvml, ""

"""Find the versions of Python, torch, CUDA and NCCL from files alone: importing torch would take a second or more."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from advisor.probe.live.sysfs import ROOT, folders, read
from advisor.rules.machine import Software, Unknown

NO_TORCH = "torch is not installed in this Python environment; try `pip install torch`"
SYSTEM_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/local/lib", "usr/lib")


def read_software(path: Iterable[str] | None = None, root: Path = ROOT) -> tuple[Software, tuple[Unknown, ...]]:
    """Read the versions that `import torch` would load from the given folders, by default `sys.path`.

    nccl: the wheel beside torch, else a library of the system (as in NVIDIA's images, `ldconfig -p | grep nccl`).
    """
    places = [Path(place) for place in (sys.path if path is None else path)]
    torch = next((text for place in places if (text := read(place / "torch/version.py")) is not None), None)
    cuda = _assigned(torch, "cuda")
    software = Software(
        python=".".join(str(part) for part in sys.version_info[:3]),
        torch=_assigned(torch, "__version__"),
        torch_cuda=cuda,
        nccl=(_nccl_wheel(places) or _nccl_library(root)) if cuda else None,
    )
    return software, _unknown(torch, software)


def _unknown(torch: str | None, software: Software) -> tuple[Unknown, ...]:
    if torch is None:
        return tuple(Unknown(what=f"software.{name}", why=NO_TORCH) for name in ("torch", "torch_cuda", "nccl"))
    if software.torch_cuda is None:
        why = "this torch is built without CUDA; see https://pytorch.org/get-started/locally for a build with it"
        return tuple(Unknown(what=f"software.{name}", why=why) for name in ("torch_cuda", "nccl"))
    if software.nccl is None:
        why = "there is no nvidia-nccl-cu* wheel and no libnccl.so.2.*; `torch.cuda.nccl.version()` tells"
        return (Unknown(what="software.nccl", why=why),)
    return ()


def _assigned(source: str | None, name: str) -> str | None:
    """Take a string out of torch/version.py, written `cuda: Optional[str] = '13.0'`; None where it assigns None."""
    found = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]*)['\"]", source or "", re.MULTILINE)
    return found[1] if found else None


def _nccl_wheel(places: list[Path]) -> str | None:
    for place in places:
        for entry in folders(place):
            if found := re.fullmatch(r"nvidia_nccl_cu\d+-([^-]+)\.dist-info", entry.name):
                return found[1]
    return None


def _nccl_library(root: Path) -> str | None:
    for place in SYSTEM_LIBRARIES:
        for library in (root / place).glob("libnccl.so.*.*.*"):
            return library.name.removeprefix("libnccl.so.")
    return None

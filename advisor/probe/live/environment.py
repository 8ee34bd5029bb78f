"""Collect the variables that steer NCCL, CUDA, torch and the launcher, also from NCCL's own files."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from advisor.probe.live.sysfs import ROOT

STEERING = re.compile(
    r"NCCL_(?!(VERSION|HOME|ROOT|ROOT_DIR|INCLUDE_DIR|LIB_DIR|LIBRARY)$)\w+"  # these are for builds and images
    r"|(TORCH_NCCL|TORCH_FR|GLOO|PET|FI)_\w+"
    r"|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|LAUNCH_BLOCKING|DEVICE_MAX_CONNECTIONS)|NVIDIA_VISIBLE_DEVICES"
    r"|PYTORCH_(CUDA_)?ALLOC_CONF|TORCH_DISTRIBUTED_DEBUG|(OMP|MKL)_NUM_THREADS"
    r"|SLURM_(JOB_ID|(JOB_)?NUM_NODES|NNODES|NODEID|NTASKS(_PER_NODE)?|CPUS_PER_TASK|GPUS_ON_NODE|(JOB|STEP)_GPUS)"
)


def read_environment(
    environ: Mapping[str, str] | None = None, home: Path | None = None, root: Path = ROOT
) -> tuple[dict[str, str], dict[str, str]]:
    """Return each steering variable's value, and for those that a file of NCCL sets, that file.

    The order is NCCL's (src/misc/param.cc): the process environment; the file that NCCL_CONF_FILE names or, only if
    that is unset, ~/.nccl.conf; then /etc/nccl.conf. A file never overrides what is set before it.
    """
    given = os.environ if environ is None else environ
    values = {name: value for name, value in given.items() if STEERING.fullmatch(name)}
    files: dict[str, str] = {}
    own = given.get("NCCL_CONF_FILE")
    layers = [(own, Path(own))] if own else [("~/.nccl.conf", (home or _home()) / ".nccl.conf")]
    for label, path in [*layers, ("/etc/nccl.conf", root / "etc/nccl.conf")]:
        for name, value in _assignments(path):
            if name not in given and name.startswith("NCCL_") and name not in files:
                values[name], files[name] = value, label
    return values, files


def _assignments(path: Path) -> Iterator[tuple[str, str]]:
    """Read NAME=value lines as NCCL does: a # in the first column is a comment, nothing is stripped or unquoted."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            yield name, value


def _home() -> Path:
    """Return the home folder of the password database, which NCCL asks; HOME does not count."""
    import pwd

    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:  # a container run under a user that it does not know
        return Path("/nonexistent")

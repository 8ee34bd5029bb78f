"""Folders that libraries fill for all processes of a user alike: what is written there is nobody's result."""

import os
import tempfile
from collections.abc import Iterator

VARIABLES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR")
HOMES = ("~/.cache", "~/.triton", "~/.config/matplotlib")


def caches() -> Iterator[str]:
    """Yield how the paths of such folders begin."""
    for folder in (*(os.environ[name] for name in VARIABLES if name in os.environ), *HOMES):
        yield os.path.realpath(os.path.expanduser(folder)) + os.sep  # noqa: PTH111
    # torch's compiler, by torch._inductor.runtime.cache_dir_utils; a user's name follows
    yield os.path.join(os.path.realpath(tempfile.gettempdir()), "torchinductor_")  # noqa: PTH118

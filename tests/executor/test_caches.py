import os
import tempfile
from pathlib import Path

import pytest

from advisor.executor.in_process.caches import caches


@pytest.mark.parametrize(
    ("path", "is_cache"),
    [
        ("~/.cache/torch/hub/x.pt", True),
        ("~/.triton/cache/k.so", True),
        ("{temporary}/torchinductor_somebody/ab/cab.py", True),
        ("{temporary}/kernels/k.json", True),  # by TRITON_CACHE_DIR
        ("{temporary}/model.pt", False),
        ("model.pt", False),
    ],
)
def test_what_libraries_keep_for_all_processes_is_told_from_results(
    monkeypatch: pytest.MonkeyPatch, path: str, *, is_cache: bool
) -> None:
    temporary = tempfile.gettempdir()
    monkeypatch.setenv("TRITON_CACHE_DIR", f"{temporary}/kernels")
    where = Path(path.format(temporary=temporary)).expanduser().absolute()
    assert os.path.realpath(where).startswith(tuple(caches())) is is_cache

"""Property tests try the same examples in every run; `HYPOTHESIS_PROFILE=explore pytest -m "not slow"` tries others."""

import os

import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(autouse=True)
def no_kept_measurements(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a cache folder of its own: what one run has learnt must not move another's prediction."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first: what is quick fills the gaps at the end, where one slow file would run alone."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)

"""Property tests try the same examples in every run; `HYPOTHESIS_PROFILE=explore pytest -m "not slow"` tries others."""

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

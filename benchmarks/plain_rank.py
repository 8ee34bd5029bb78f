"""One rank of a whole run for `plain.py`: enter the folder that is named first, then run what follows.

With PLAIN_ALONE it drops nothing and loads without workers, like the ranks that are compared with it. With PLAIN_NUDGE,
weights are off by so much, a rounding, from the start: what comes of that is no difference of method.
"""

import importlib
import os
import runpy
import sys
from pathlib import Path

from advisor.executor.forked import FORKS
from advisor.executor.in_process.plain_proof import nudge, one_process_loads, without_dropout

os.chdir(sys.argv[1])
if "PLAIN_ALONE" in os.environ:
    sys.path.insert(0, str(Path(sys.argv[2]).parent))  # where python looks for a script's own modules
    import torch

    without_dropout(torch.nn.functional)
    one_process_loads(torch.utils.data.dataloader)
if "PLAIN_NUDGE" in os.environ:
    nudge(importlib.import_module("torch.optim.optimizer"), float(os.environ["PLAIN_NUDGE"]))
run = runpy.run_path(str(FORKS), run_name="forks")["run_worker"]
sys.exit(run(sys.argv[2:]))

"""NCCL reports that two ranks use the same GPU.

## What it finds
"Duplicate GPU detected" among the warnings of NCCL in a log that was given.

## Why it matters
NCCL takes one rank for each GPU; MPS does not change this. Either there are more processes than GPUs, or no rank chose
its own and all took cuda:0.

## What to do
Start as many processes as there are GPUs, and let each rank call torch.cuda.set_device(LOCAL_RANK) before it touches
the GPU or starts the process group.

## Source
https://github.com/NVIDIA/nccl/issues/418; https://docs.pytorch.org/docs/stable/elastic/run.html
"""

import re
from collections.abc import Iterator

from advisor.rules.format import plural
from advisor.rules.host_ranks import gpus_of
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

_DUPLICATE = re.compile(r"Duplicate GPU detected\s*:?\s*(.*)")


@rule("ENV127", "two-ranks-on-one-gpu")
def check(case: Case) -> Iterator[Finding]:
    log = case.machine.nccl_log
    found = next((match for text in log.warnings if (match := _DUPLICATE.search(text))), None) if log else None
    if found is None:
        return
    gpus = len(gpus_of(case))
    count = f"torchrun --nproc-per-node={gpus}" if gpus else "torchrun with one process for each GPU"
    yield Finding(
        code="ENV127",
        name="two-ranks-on-one-gpu",
        severity="error",
        message=f"two ranks took one GPU, which NCCL refuses, with MPS too: {found[1] or 'Duplicate GPU detected'}",
        facts={"said": found[0], "gpus": gpus},
        remedy=f"{count}; torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) first"
        + (f" ({plural(gpus, 'GPU')} here)" if gpus else ""),
    )

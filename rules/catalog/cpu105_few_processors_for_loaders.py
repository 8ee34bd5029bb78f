"""There are fewer than four processors for each GPU.

## What it finds
A host, container or batch job with less than four logical processors for each GPU of the plan.

## Why it matters
Each rank keeps about one processor busy with launching kernels; NCCL's proxy and the loader's workers need the rest.
With too few, images are decoded and text is tokenized more slowly than the GPUs train, and more workers make it worse.

## What to do
Ask for more processors. Otherwise keep `num_workers` times the ranks within what is there, and prepare the data before.

## Source
https://github.com/ultralytics/yolov5/issues/715; https://github.com/AILab-CVC/YOLO-World/issues/413
"""

from collections.abc import Iterator

from advisor.rules.format import plural
from advisor.rules.host_ranks import gpus_of
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

ENOUGH = 4  # logical processors per GPU


@rule("CPU105", "few-processors-for-loaders")
def check(case: Case) -> Iterator[Finding]:
    cpus, gpus = case.machine.host.cpus, len(gpus_of(case))
    if not cpus or not gpus or not gpus <= cpus < ENOUGH * gpus:
        return
    workers = max(0, cpus // gpus - 1)
    yield Finding(
        code="CPU105",
        name="few-processors-for-loaders",
        severity="info",
        message=f"{plural(cpus, 'processor')} for {plural(gpus, 'GPU')}: {cpus / gpus:.3g} each, for rank and loader",
        facts={"processors": cpus, "gpus": gpus, "workers_per_rank": workers},
        remedy=f"ask for {ENOUGH * gpus} processors or more; until then DataLoader(..., num_workers={workers})",
    )

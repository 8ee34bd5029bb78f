"""Each GPU computes too little per step to hide the traffic of the gradients.

## What it finds
A DDP plan that waits for communication for at least a quarter of the step, with the samples per GPU that would hide it.

## Why it matters
DDP reduces the same bytes per step whatever the batch; what hides them is the backward pass, two thirds of the compute.
Twice the samples per GPU and step are twice the time to hide in. Buckets only decide when gradients leave: where the
link is busy throughout, no size helps. A user with two hosts on Ethernet tried caps up to 150 MB without any change.

## What to do
A larger global batch (with another learning rate), as micro-batches under `no_sync`, or as larger ones; a longer
sequence does the same. Otherwise fewer GPUs or a faster link.

## Source
docs/models.md for the timeline; https://github.com/facebookresearch/fairseq/issues/789 for the buckets;
https://arxiv.org/abs/2205.10287 for the learning rate
"""

import math
from collections.abc import Iterator

from advisor.rules.alternatives import exposed_share
from advisor.rules.format import percent, seconds
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.scaling import learning_rate

WAITING = 0.25  # of the step
BACKWARD = 2 / 3  # of the compute


@rule("PAR127", "too-few-tokens-to-hide-traffic")
def check(case: Case) -> Iterator[Finding]:
    plan, predicted, job = case.plan, case.predicted, case.job
    if plan is None or predicted is None or job is None or plan.strategy != "ddp" or plan.launcher.device == "cpu":
        return
    if exposed_share(predicted) < WAITING or predicted.compute_seconds <= 0 or job.global_batch == plan.ranks:
        return
    one = plan.accumulation if plan.sync_each_micro_batch else 1
    times = math.ceil(predicted.communication_seconds / one / (BACKWARD * predicted.compute_seconds))
    if times < 2:
        return
    here = job.global_batch // plan.ranks * job.seq
    unit = "tokens" if job.seq > 1 else "samples"
    batch = times * job.global_batch
    buckets = "; buckets of 50, 100 and 200 MiB gain less than 3 %" if plan.bucket_cap_mb is None else ""
    yield Finding(
        code="PAR127",
        name="too-few-tokens-to-hide-traffic",
        severity="info",
        message=(
            f"{here} {unit} per GPU and step compute for {seconds(predicted.compute_seconds)}, the gradients travel "
            f"for {seconds(predicted.communication_seconds)}: {percent(exposed_share(predicted))} of the step wait; "
            f"about {times * here} {unit} would hide them{buckets}"
        ),
        facts={"tokens": here, "needed": times * here, "exposed_seconds": predicted.exposed_communication_seconds},
        remedy=f"--global-batch {batch} ({learning_rate(job, batch)}) if the training bears it, else fewer GPUs",
    )

"""There are fewer processors than GPUs.

## What it finds
A container or batch job that may use fewer logical processors than the plan has ranks on GPUs. The usual cause is a
Slurm job of one task without --cpus-per-task, which gets one processor for all GPUs.

## Why it matters
Each rank needs a processor to launch its kernels. Ranks that share one take turns, so all GPUs wait for the last rank
of each collective, and loader workers take what is left.

## What to do
Ask for four or more processors for each GPU.

## Source
https://slurm.schedmd.com/sbatch.html#OPT_cpus-per-task
"""

from collections.abc import Iterator

from advisor.rules.format import plural
from advisor.rules.host_ranks import gpus_of
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("CPU106", "fewer-processors-than-gpus")
def check(case: Case) -> Iterator[Finding]:
    cpus, gpus = case.machine.host.cpus, len(gpus_of(case))
    if not cpus or cpus >= gpus:
        return
    slurm = "SLURM_JOB_ID" in case.machine.environment
    yield Finding(
        code="CPU106",
        name="fewer-processors-than-gpus",
        severity="warning",
        message=f"this job may use {plural(cpus, 'processor')} for {gpus} ranks on GPUs",
        facts={"processors": cpus, "gpus": gpus},
        remedy=f"sbatch --cpus-per-task={4 * gpus}" if slurm else f"give this job {4 * gpus} processors or more",
    )

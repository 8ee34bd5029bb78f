"""The processors that this job may use are all on another NUMA node than some of its GPUs.

## What it finds
GPUs of which `nvidia-smi topo -m` prints no processor under "CPU Affinity", beside others where it prints some: the
scheduler, a container or `taskset` left out the processors next to those GPUs.

## Why it matters
The ranks of those GPUs run on the other socket. All that they copy to the GPU, and NCCL's buffers in host memory, cross
the link between the sockets; so does traffic through network cards on the GPUs' own node.

## What to do
Ask the scheduler for processors of each node that GPUs hang on. Where a launcher bound the ranks and can't be changed,
NCCL_IGNORE_CPU_AFFINITY=1 lets NCCL's own threads choose the GPU's node.

## Source
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ignore-cpu-affinity
"""

from collections.abc import Iterator

from advisor.rules.format import cpu_list, ids
from advisor.rules.host_ranks import gpus_of
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("CPU102", "processors-far-from-gpus")
def check(case: Case) -> Iterator[Finding]:
    gpus = gpus_of(case)
    far = [gpu.id for gpu in gpus if gpu.cpu_affinity == ()]
    allowed = {cpu for gpu in gpus for cpu in gpu.cpu_affinity or ()}
    if not far or not allowed:
        return
    yield Finding(
        code="CPU102",
        name="processors-far-from-gpus",
        severity="info",
        message=(
            f"this job may use no processor next to {ids(far)}: only {cpu_list(allowed)}, "
            f"next to the other {len(gpus) - len(far)} GPUs"
        ),
        facts={"gpus": far, "processors": len(allowed)},
        remedy="ask for processors of all nodes, with Slurm --exclusive or --cpus-per-gpu and --gpu-bind=closest",
    )

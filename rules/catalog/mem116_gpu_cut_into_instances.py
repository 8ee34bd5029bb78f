"""A GPU is cut into instances (MIG), and a process gets one of them.

## What it finds
A GPU that is listed whole while MIG has cut it into instances.

## Why it matters
CUDA shows a process one instance, with that instance's memory. A plan for the whole GPU's memory then runs out. Two
instances of one GPU can't form one NCCL job either.

## What to do
Choose an instance with CUDA_VISIBLE_DEVICES=MIG-... and probe again, or switch MIG off: `sudo nvidia-smi -mig 0`.

## Source
https://docs.nvidia.com/datacenter/tesla/mig-user-guide/; https://github.com/NVIDIA/nccl/issues/431
"""

from collections.abc import Iterator

from advisor.rules.format import ids, memory
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("MEM116", "gpu-cut-into-instances")
def check(case: Case) -> Iterator[Finding]:
    used = None if case.plan is None else set(case.plan.gpus)
    cut = [gpu for gpu in case.machine.gpus if gpu.mig and (used is None or gpu.id in used)]
    if not cut:
        return
    sizes = [part.memory for gpu in cut for part in gpu.mig or () if part.memory]
    largest = max(sizes, default=None)
    total = case.predicted.memory.total if case.predicted else None
    fails = total is not None and largest is not None and total > largest
    count = sum(len(gpu.mig or ()) for gpu in cut)
    has = f" with at most {memory(largest)}" if largest else ""
    needs = f"; the plan needs {memory(total)}" if fails else ""
    nccl = ", and NCCL joins no two instances of one GPU" if count > len(cut) else ""
    parts = cut[0].mig or ()
    first = parts[0].uuid
    yield Finding(
        code="MEM116",
        name="gpu-cut-into-instances",
        severity="warning" if fails else "info",
        message=(
            f"MIG cuts {ids([gpu.id for gpu in cut])} of {memory(cut[0].memory)} into {count} "
            f"instance{'s' if count > 1 else ''}; a process gets one{has}{nccl}{needs}"
        ),
        facts={"gpus": [gpu.id for gpu in cut], "instances": count, "largest": largest},
        remedy=f"export CUDA_VISIBLE_DEVICES={first} and probe again, or switch MIG off with sudo nvidia-smi -mig 0",
    )

"""Slurm shows each task one GPU only.

## What it finds
SLURM_GPUS_PER_TASK=1 or a binding of one GPU to each task (--gpu-bind), with more than one task; or a process whose
LOCAL_RANK is above 0 while CUDA_VISIBLE_DEVICES lists one device.

## Why it matters
In each task the only GPU is cuda:0, so `set_device(local_rank)` ends with "invalid device ordinal" on all ranks but the
first. Where Slurm also fences the devices in, NCCL may not reach the other GPUs directly and goes through host memory.

## What to do
Let one task see all GPUs and start the ranks with torchrun: `advisor apply` in that task does so. Or keep the tasks and
use device local_rank % torch.cuda.device_count().

## Source
https://slurm.schedmd.com/sbatch.html#OPT_gpus-per-task; https://github.com/ACEsuit/mace/issues/435
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.visible_devices import entries_of

TASKS = ("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS", "SLURM_NPROCS")


@rule("ENV128", "one-visible-gpu-per-task")
def check(case: Case) -> Iterator[Finding]:
    environment = case.machine.environment
    rank = max(_number(environment.get(name)) or 0 for name in ("LOCAL_RANK", "SLURM_LOCALID"))
    tasks = next((count for name in TASKS if (count := _number(environment.get(name)))), None)
    lone = rank > 0 and len(entries_of(case.machine) or ()) == 1
    bound = next((name for name in ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND") if _one(environment.get(name))), None)
    if not lone and (bound is None or (tasks or (2 if rank else 1)) < 2):
        return
    setting = f"{bound}={environment[bound]}" if bound else f"CUDA_VISIBLE_DEVICES with LOCAL_RANK={rank}"
    gpus = _number(environment.get("SLURM_GPUS_ON_NODE")) or len(case.machine.gpus) or 8
    yield Finding(
        code="ENV128",
        name="one-visible-gpu-per-task",
        severity="warning",
        message=f"{setting} shows each task one GPU, as cuda:0: set_device(local_rank) fails from local rank 1 on",
        facts={"setting": setting, "tasks": tasks, "local_rank": rank},
        remedy=(
            f"srun --ntasks-per-node=1 --gpus-per-node={gpus} and torchrun --nproc-per-node={gpus}; "
            "or torch.cuda.set_device(local_rank % torch.cuda.device_count())"
        ),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _one(text: str | None) -> bool:
    """Say whether a setting gives one GPU to a task: 1, a100:1, single:1, per_task:1."""
    return text is not None and text.split(":")[-1] == "1"

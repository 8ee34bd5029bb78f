"""CUDA_VISIBLE_DEVICES is empty, or names devices that are not there.

## What it finds
An empty list, -1 or NoDevFiles (as batch systems set it for jobs without GPUs), or more entries than GPUs that CUDA
shows: one that is not there, or is listed twice, ends the list.

## Why it matters
CUDA stops at the first entry that it does not know and hides all that follow, without a word: 0,1,9,2 shows two GPUs.

## What to do
Unset it, or list what `nvidia-smi -L` prints.

## Source
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables
"""

from collections.abc import Iterator

from advisor.rules.cpu_ranks import is_cpu
from advisor.rules.format import plural
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.visible_devices import entries_of, hidden_gpus, only_visible


@rule("ENV122", "visible-devices-name-no-gpu")
def check(case: Case) -> Iterator[Finding]:
    entries, gpus = entries_of(case.machine), case.machine.gpus
    hidden = hidden_gpus(case.machine) > 0
    if entries and gpus and entries[0].isdecimal():
        entries = tuple(entry for entry in entries if entry)
        gpus = only_visible(case.machine).gpus
    if entries is None or (entries and len(entries) <= len(gpus)):
        return
    if any(is_cpu(gpu) for gpu in gpus) or not (
        case.machine.gpus or hidden
    ):  # a host without GPUs, or one that computes on its CPUs
        return
    listed = case.machine.environment["CUDA_VISIBLE_DEVICES"]
    shown = plural(len(gpus), "GPU") if entries else "no GPU"
    yield Finding(
        code="ENV122",
        name="visible-devices-name-no-gpu",
        severity="warning",
        message=f"CUDA_VISIBLE_DEVICES={listed!r} lists {plural(len(entries), 'device')}; CUDA shows {shown}",
        facts={"listed": len(entries), "gpus": len(gpus)},
        remedy="unset CUDA_VISIBLE_DEVICES, or list GPUs that nvidia-smi -L prints",
    )

"""CUDA_VISIBLE_DEVICES shows fewer GPUs than the machine has.

## What it finds
A list of devices shorter than the GPUs that are planned for: the machine is known from a text or a file, and the
environment beside it hides some of its GPUs. (Where the machine is probed directly, hidden GPUs are left out; for one
rank of a running job see ENV128.)

## Why it matters
CUDA numbers the visible GPUs from 0. More processes than visible GPUs end with "invalid device ordinal", and so does a
script that passes a number from the list to `set_device`.

## What to do
Start as many processes as GPUs are visible, or unset the variable. `advisor apply` sets it to the GPUs of the plan.

## Source
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables; https://github.com/pytorch/examples/issues/885
"""

from collections.abc import Iterator

from advisor.rules.format import plural
from advisor.rules.host_ranks import gpus_of
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.visible_devices import entries_of


@rule("ENV121", "visible-devices-are-fewer")
def check(case: Case) -> Iterator[Finding]:
    entries, total = entries_of(case.machine), len(case.machine.gpus)
    if not entries or len(entries) >= total or not gpus_of(case) or "LOCAL_RANK" in case.machine.environment:
        return
    listed = case.machine.environment["CUDA_VISIBLE_DEVICES"]
    planned = 0 if case.plan is None else len(case.plan.gpus)
    too_many = f", and the plan starts {planned} processes" if planned > len(entries) else ""
    yield Finding(
        code="ENV121",
        name="visible-devices-are-fewer",
        severity="warning" if too_many else "info",
        message=(
            f"CUDA_VISIBLE_DEVICES={listed} shows {len(entries)} of {plural(total, 'GPU')}, numbered from 0{too_many}; "
            f"process {len(entries)} and later would find no device"
        ),
        facts={"visible": len(entries), "gpus": total, "processes": planned or None},
        remedy=f"torchrun --nproc-per-node={len(entries)}, or unset CUDA_VISIBLE_DEVICES",
    )

"""CUDA_VISIBLE_DEVICES shows fewer GPUs than the machine has.

## What it finds
A list of devices shorter than the GPUs that the machine has: which GPU each number means then, and how many processes
the plan starts. (For one rank of a running job see ENV128.)

## Why it matters
CUDA numbers the visible GPUs from 0. More processes than visible GPUs end with "invalid device ordinal", and so does a
script that passes a number from the list to `set_device`.

## What to do
Start as many processes as GPUs are visible, as a recommended plan does, or unset the variable. `advisor apply` sets it
to the GPUs of the plan.

## Source
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables; https://github.com/pytorch/examples/issues/885
"""

from collections.abc import Iterator

from advisor.rules.format import plural
from advisor.rules.host_ranks import gpus_of
from advisor.rules.machine import Gpu
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule
from advisor.rules.visible_devices import entries_of, hidden_gpus, only_visible

SHOWN = 4  # devices of which the message says what they are


@rule("ENV121", "visible-devices-are-fewer")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    total = len(machine.gpus) + hidden_gpus(machine)
    if not entries_of(machine) or not gpus_of(case) or "LOCAL_RANK" in machine.environment:
        return
    seen = only_visible(machine).gpus
    if not 0 < len(seen) < total:
        return
    listed = machine.environment["CUDA_VISIBLE_DEVICES"]
    planned = 0 if case.plan is None else len(case.plan.gpus)
    too_many = planned > len(seen)
    fails = f", and the plan starts {planned} processes; process {len(seen)} and later would find no device"
    more = ", ..." if len(seen) > SHOWN else ""
    yield Finding(
        code="ENV121",
        name="visible-devices-are-fewer",
        severity="warning" if too_many else "info",
        message=(
            f"CUDA_VISIBLE_DEVICES={listed} shows {len(seen)} of {plural(total, 'GPU')}, numbered from 0: "
            f"{', '.join(f'cuda:{number} is {_words(gpu)}' for number, gpu in enumerate(seen[:SHOWN]))}{more}"
            + (fails if too_many else f"; more than {plural(len(seen), 'process')} would find no device")
        ),
        facts={
            "visible": len(seen),
            "gpus": total,
            "processes": planned or None,
            "devices": [{"gpu": gpu.id, "uuid": gpu.uuid, "bus_id": gpu.bus_id} for gpu in seen],
        },
        remedy=f"torchrun --nproc-per-node={len(seen)}, or unset CUDA_VISIBLE_DEVICES",
    )


def _words(gpu: Gpu) -> str:
    """Name a GPU by what is known: its number, the start of its UUID, its PCI address."""
    marks = [mark for mark in ((gpu.uuid or "")[:12], gpu.bus_id) if mark]
    return gpu.id + (f" ({', '.join(marks)})" if marks else "")

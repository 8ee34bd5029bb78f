"""The GPUs are of several kinds, and CUDA numbers them in another order than nvidia-smi.

## What it finds
GPUs with different names, CUDA_DEVICE_ORDER not set to PCI_BUS_ID, and a plan or a CUDA_VISIBLE_DEVICES with numbers.

## Why it matters
CUDA puts the fastest GPU first, nvidia-smi counts by PCI address. `cuda:0` and the numbers in CUDA_VISIBLE_DEVICES may
then mean another GPU than the one that was looked at.

## What to do
Nothing under `advisor apply`: the plan sets the order. Elsewhere export it, or list GPUs by UUID.

## Source
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables
"""

from collections.abc import Iterator

from advisor.rules.cpu_ranks import is_cpu
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule


@rule("ENV123", "device-order-differs")
def check(case: Case) -> Iterator[Finding]:
    machine = case.machine
    names = list(dict.fromkeys(gpu.name for gpu in machine.gpus if gpu.name and not is_cpu(gpu)))
    numbered = machine.environment.get("CUDA_VISIBLE_DEVICES", "")[:1].isdecimal()
    in_order = machine.environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if len(names) < 2 or in_order or not (numbered or case.plan):
        return
    yield Finding(
        code="ENV123",
        name="device-order-differs",
        severity="info",
        message=f"CUDA counts the fastest of {' and '.join(names)} first, nvidia-smi by PCI address",
        facts={"kinds": len(names), "env": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}},
        remedy="export CUDA_DEVICE_ORDER=PCI_BUS_ID",
    )

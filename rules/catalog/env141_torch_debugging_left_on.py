"""A variable of CUDA or torch is left on that is meant for finding faults.

## What it finds
CUDA_LAUNCH_BLOCKING, PYTORCH_NO_CUDA_MEMORY_CACHING and TORCH_DISTRIBUTED_DEBUG=DETAIL, which make every step slower;
TORCH_NCCL_NAN_CHECK, TORCH_NCCL_DESYNC_DEBUG and TORCH_NCCL_ENABLE_TIMING, which cost less.

## Why it matters
CUDA_LAUNCH_BLOCKING=1 waits for each kernel, so nothing overlaps. Without the cache each tensor is a cudaMalloc.
DETAIL compares every collective over all ranks before it runs.

## What to do
Unset it for training; set it again for the one run that looks for a fault.

## Source
https://docs.pytorch.org/docs/stable/distributed.html#torch-distributed-debug; https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
"""

from collections.abc import Iterator

from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

SLOW = {
    "CUDA_LAUNCH_BLOCKING": "the host waits for each kernel",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "each tensor is allocated anew",
    "PYTORCH_NO_HIP_MEMORY_CACHING": "each tensor is allocated anew",
}
CHECKS = {
    "TORCH_NCCL_NAN_CHECK": "each collective's input is searched for NaN",
    "TORCH_NCCL_DESYNC_DEBUG": "each collective is reported to the store",
    "TORCH_NCCL_ENABLE_TIMING": "each collective records events",
}
OFF = ("", "0", "false", "off")


@rule("ENV141", "torch-debugging-left-on")
def check(case: Case) -> Iterator[Finding]:
    for name, value in case.machine.environment.items():
        if name == "TORCH_DISTRIBUTED_DEBUG" and value.upper() == "DETAIL":
            slow, does = True, "each collective is compared over all ranks first"
        elif name in (SLOW | CHECKS) and value.lower() not in OFF:
            slow, does = name in SLOW, (SLOW | CHECKS)[name]
        else:
            continue
        yield Finding(
            code="ENV141",
            name="torch-debugging-left-on",
            severity="warning" if slow else "info",
            message=f"{name}={value} is set: {does}",
            facts={"variable": name, "value": value},
            remedy=f"unset {name}",
        )

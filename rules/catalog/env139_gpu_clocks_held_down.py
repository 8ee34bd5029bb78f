"""Heat or the power supply holds a GPU's clocks down.

## What it finds
Thermal slowdown or power brake among the reasons for which a GPU's clocks are limited now. The power cap alone is
normal under load and no finding.

## Why it matters
Hardware slowdown halves the clocks or worse. All ranks wait for the slowest GPU in each collective, so one hot card
slows the whole job.

## What to do
Look at fans, air flow and power cables; `nvidia-smi -q -d PERFORMANCE,TEMPERATURE` shows the reasons while it runs.
Until then leave that GPU out.

## Source
https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
"""

from collections.abc import Iterator

from advisor.rules.host_ranks import gpus_of
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

HARMFUL = ("SW Thermal Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown", "HW Slowdown")


@rule("ENV139", "gpu-clocks-held-down")
def check(case: Case) -> Iterator[Finding]:
    gpus = gpus_of(case)
    held = {gpu.id: [reason for reason in gpu.throttle or () if reason in HARMFUL] for gpu in gpus}
    held = {gpu: reasons for gpu, reasons in held.items() if reasons}
    if not held:
        return
    listed = "; ".join(f"{gpu}: {', '.join(reasons)}" for gpu, reasons in held.items())
    yield Finding(
        code="ENV139",
        name="gpu-clocks-held-down",
        severity="warning",
        message=f"the clocks of {len(held)} of {len(gpus)} GPUs are held down ({listed}); the others wait for them",
        facts={"reasons": held},
        remedy="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; check fans, air flow and power cables",
    )

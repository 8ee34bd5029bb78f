"""The job trains in fp32 on GPUs that are many times faster in 16 bits.

## What it finds
A job in fp32 on GPUs with tensor cores, where the same plan under autocast takes at most two thirds of the time.

## Why it matters
PyTorch multiplies fp32 matrices outside the tensor cores unless TF32 is allowed: 67 instead of 989 TFLOP/s on an H100.
Autocast keeps fp32 weights and optimizer states, and multiplies in bf16 (fp16 with a GradScaler before Ampere).

## What to do
Price it with `--precision bf16`. It changes rounding, so compare losses; `torch.set_float32_matmul_precision("high")`
is the smaller step, TF32 with all else as it is.

## Source
NVIDIA's data sheets; https://docs.pytorch.org/docs/stable/amp.html; https://arxiv.org/abs/1710.03740
"""

from collections.abc import Iterator

from advisor.rules.alternatives import changed
from advisor.rules.device import supports_bf16
from advisor.rules.format import seconds
from advisor.rules.hardware import gpu_model
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

LEAST = 1.5  # times faster


@rule("PAR106", "fp32-on-tensor-cores")
def check(case: Case) -> Iterator[Finding]:
    plan, predicted, job = case.plan, case.predicted, case.job
    if plan is None or predicted is None or job is None or job.precision != "fp32" or plan.launcher.device == "cpu":
        return
    gpus = [case.machine.gpu(name) for name in plan.gpus]
    if any(gpu.name is None or gpu_model(gpu.name) is None for gpu in gpus):
        return
    dtype = "bf16" if all(map(supports_bf16, gpus)) else "fp16"
    half = changed(case, precision=f"{dtype}-autocast")
    if half is None or predicted.step_seconds < LEAST * half.step_seconds:
        return
    times = predicted.step_seconds / half.step_seconds
    yield Finding(
        code="PAR106",
        name="fp32-on-tensor-cores",
        severity="info",
        message=(
            f"in fp32 a step takes {seconds(predicted.step_seconds)}, under {dtype} autocast "
            f"{seconds(half.step_seconds)}, {times:.1f} times faster; it rounds differently, so compare losses"
        ),
        facts={"step_seconds": predicted.step_seconds, "half_step_seconds": half.step_seconds, "dtype": dtype},
        remedy=f'--precision {dtype}, or torch.set_float32_matmul_precision("high") in the script for TF32',
    )

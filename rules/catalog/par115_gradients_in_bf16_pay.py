"""Gradients sent in 16 bits would make the step clearly faster.

## What it finds
A plan that waits for the reduction of fp32 gradients, and would gain at least 15 % of the step with half the bytes.

## Why it matters
Under autocast and under FSDP's mixed precision gradients are fp32 on the wire. Measured on two H200 through host
memory, a step of a 1.4B GPT: 278 ms, with the bf16 hook 198 ms. The sum over ranks is then rounded to 8 significant
bits in each hop: most runs bear it, small learning rates and many ranks least. So it is not switched on by itself.

## What to do
Compare the loss of some hundred steps with and without it. Allow it: `--allow bf16-gradients`. In a script, DDP:
`model.register_comm_hook(None, default_hooks.bf16_compress_hook)`; FSDP: `MixedPrecisionPolicy(param_dtype=...,
reduce_dtype=torch.bfloat16)`.

## Source
docs/models.md for the measurement; torch.distributed.algorithms.ddp_comm_hooks.default_hooks
"""

from collections.abc import Iterator

from advisor.rules.alternatives import changed, exposed_share
from advisor.rules.device import supports_bf16
from advisor.rules.format import percent, seconds
from advisor.rules.plan import Finding
from advisor.rules.rule import Case, rule

LEAST = 0.15  # of the step


@rule("PAR115", "gradients-in-bf16-pay")
def check(case: Case) -> Iterator[Finding]:
    plan, predicted = case.plan, case.predicted
    if plan is None or predicted is None or plan.launcher.device == "cpu" or plan.gradient_dtype != "fp32":
        return
    if exposed_share(predicted) < LEAST or plan.precision == "fp32":
        return
    dtype = "bf16" if all(supports_bf16(case.machine.gpu(name)) for name in plan.gpus) else "fp16"
    half = changed(case, gradient_dtype=dtype)
    if half is None or half.step_seconds > (1 - LEAST) * predicted.step_seconds:
        return
    gain = 1 - half.step_seconds / predicted.step_seconds
    risk = "rounds their sum to 8 significant bits" if dtype == "bf16" else "overflows above 65504"
    hook = (
        f"model.register_comm_hook(None, default_hooks.{dtype}_compress_hook)"
        if plan.strategy == "ddp"
        else "MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)"
    )
    yield Finding(
        code="PAR115",
        name="gradients-in-bf16-pay",
        severity="info",
        message=(
            f"gradients sent as {dtype} would take {percent(gain)} off the step: {seconds(half.step_seconds)} instead "
            f"of {seconds(predicted.step_seconds)}; it {risk}, so compare losses first"
        ),
        facts={"step_seconds": predicted.step_seconds, "with_half": half.step_seconds, "dtype": dtype},
        remedy=f"allow it: --allow bf16-gradients; or in the script {hook}",
    )

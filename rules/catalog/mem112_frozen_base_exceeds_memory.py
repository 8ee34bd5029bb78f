"""Adapters do not fit because of the frozen base, which would fit in 4 bits.

## What it finds
A job that trains a part of the parameters (LoRA), of which nothing fits, and that would fit with its base in NF4.

## Why it matters
A frozen base in bf16 takes 2 bytes per parameter, in NF4 with double quantization 0.52. For adapters that is nearly all
of the memory.

## What to do
Add `--quantize nf4` to the job, and load the base so: `BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
bnb_4bit_use_double_quant=True)`. Under FSDP add `bnb_4bit_quant_storage=torch.bfloat16`, so that it can be sharded.

## Source
QLoRA, https://arxiv.org/abs/2305.14314; https://www.answer.ai/posts/2024-03-06-fsdp-qlora.html (70B on two 24 GB GPUs)
"""

from collections.abc import Iterator

from msgspec.structs import replace

from advisor.rules.cpu_ranks import is_cpu
from advisor.rules.format import count, memory
from advisor.rules.plan import Finding
from advisor.rules.remedies import smallest
from advisor.rules.rule import Case, rule


@rule("MEM112", "frozen-base-exceeds-memory")
def check(case: Case) -> Iterator[Finding]:
    job, machine = case.job, case.machine
    if job is None or case.plan is not None or not case.candidates or job.architecture is None or job.quantize:
        return
    frozen = job.params - job.trainable_params
    if frozen < job.trainable_params or is_cpu(machine.gpus[0]):
        return
    needed = smallest(replace(job, quantize="nf4"), machine)
    if needed.total > needed.available:
        return
    yield Finding(
        code="MEM112",
        name="frozen-base-exceeds-memory",
        severity="info",
        message=(
            f"the frozen base takes {count(frozen)} x 2 B = {memory(2 * frozen)}; in 4 bits the smallest plan needs "
            f"{memory(needed.total)} of {memory(needed.available)} per rank and fits"
        ),
        facts={"frozen": 2 * frozen, "needed": needed.total, "available": needed.available},
        remedy="add --quantize nf4 (QLoRA)",
    )

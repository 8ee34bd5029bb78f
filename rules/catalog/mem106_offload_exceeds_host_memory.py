"""The host has too little memory to take the states off the GPUs.

## What it finds
A job that fits on the GPUs only with its states in host memory, on a host whose memory is known and too small for them.

## Why it matters
CPU offload moves weights, gradients and optimizer states to the host: 16 bytes for each parameter that AdamW trains,
for all ranks of the host together. The memory is pinned, so it can't be swapped: the kernel ends the job instead.

## What to do
Use more hosts, each of which then holds a part, or keep less: adapters (LoRA), an 8-bit optimizer.

## Source
ZeRO-Offload, https://arxiv.org/abs/2101.06840; 70B on 7x A100-80GB: https://github.com/meta-llama/llama-cookbook/issues/122
"""

from collections.abc import Iterator

from advisor.rules.cpu_ranks import is_cpu
from advisor.rules.format import count, memory
from advisor.rules.memory import USABLE, states
from advisor.rules.plan import Finding
from advisor.rules.remedies import smallest
from advisor.rules.rule import Case, rule


@rule("MEM106", "offload-exceeds-host-memory")
def check(case: Case) -> Iterator[Finding]:
    job, machine = case.job, case.machine
    host = machine.host.memory_available or machine.host.memory
    if job is None or case.plan is not None or not case.candidates or host is None or is_cpu(machine.gpus[0]):
        return
    needed = smallest(job, machine, offload=True)
    on_host = needed.host * len(machine.gpus)
    if needed.total > needed.available or needed.host_available is None or needed.host <= needed.host_available:
        return
    per_parameter = states(job).total / job.trainable_params
    hosts = f" / {machine.nodes} hosts" if machine.nodes > 1 else ""
    asked = "cpu-offload" in job.allow
    yield Finding(
        code="MEM106",
        name="offload-exceeds-host-memory",
        severity="error" if asked else "info",
        message=(
            f"{'' if asked else 'CPU offload would not help either: '}the states take {per_parameter:.3g} B x "
            f"{count(job.trainable_params)}{hosts} = {memory(on_host)} of host memory, {memory(host)} there"
        ),
        facts={"host_needed": on_host, "host_memory": host},
        remedy=f"use a host with {memory(on_host / USABLE)} of free memory, or more hosts"
        + (", or train adapters: --lora-rank 16" if job.trainable_params == job.params else ""),
    )

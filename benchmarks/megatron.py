"""Megatron-LM of 2021-2022, which the rows of VIA-Research/vTrain ran: what it does otherwise than a plain GPT.

Read from its source (megatron/model/transformer.py, distributed.py and optimizer.py of v2.5 to v3.0):
attention keeps and moves the whole matrix of scores, with dropout; two more dropouts a block; gradients are added to
fp32 buffers after each micro-batch; all-reduce after the last backward pass, beside nothing; the optimizer unscales,
takes the norm, clips, and copies fp32 weights to fp16.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from advisor.probe.load import load_machine
from advisor.rules.cost import Costs
from advisor.rules.decoder import decoder_profile
from advisor.rules.device import device_of
from advisor.rules.job import Architecture, Job, count_params
from advisor.rules.machine import Machine
from advisor.rules.plan import Plan, Predicted
from advisor.rules.profile import Amount, Kernels, Profile, Unit

VOCABULARY = 51200  # GPT-2's, padded

# Bytes for each score (heads x seq x seq of a sample). Forward: two products write or read 2 each, softmax 4, dropout 5
# (2 in, 2 out, a mask of 1). Backward: four products 2 each, dropout 5, softmax 6.
SCORES_FORWARD, SCORES_BACKWARD = 13.0, 19.0
# Launches of a block beside those of a plain one. Forward: the three steps of attention for one, copies to and from
# (seq, batch, hidden) order, two dropouts, saving and restoring the state of the random numbers around one of them.
# Backward: their counterparts, and a Python hook for each of 12 parameters that adds its gradient to an fp32 buffer,
# which takes the time of two launches.
LAUNCHES_FORWARD, LAUNCHES_BACKWARD = 14, 38
LOSS = 36.0  # bytes for each logit beside those of torch's cross-entropy: fp32 copy, and softmax in single steps
DROPOUT = 5.0  # bytes for each element of the two dropouts outside attention, each way
MAIN_GRADIENTS = 10.0  # bytes for each parameter and micro-batch: 2 + 4 read, 4 written
OPTIMIZER = 22.0  # bytes for each parameter beside AdamW's own 28


class Run(NamedTuple):
    """One measured run."""

    label: str
    machine: Machine
    job: Job
    plan: Plan
    seconds: float

    def costs(self) -> Predicted:
        """Predict the step, with communication after the compute and the longer optimizer."""
        found = Costs(self.job, self.machine)
        predicted = found.predict(self.plan, found.memory(self.plan))
        device = device_of(self.machine, self.plan.gpus[0], self.plan.precision)
        optimizer = OPTIMIZER * self.job.params / device.streaming
        step = predicted.compute_seconds + predicted.communication_seconds + optimizer
        low, high = predicted.step_seconds_range
        scale = step / predicted.step_seconds
        return replace(predicted, step_seconds=step, step_seconds_range=(low * scale, high * scale))


def runs(path: Path) -> Iterator[Run]:
    """Read the rows without tensor and pipeline parallelism."""
    lines = [line.lstrip("# ") for line in path.read_text().splitlines() if line.strip()]
    for entry in csv.DictReader(lines):
        sizes = {name.strip(): float(value) for name, value in entry.items()}
        if sizes["tensor parallelism"] == sizes["pipeline parallelism"] == 1:
            yield _run(sizes)


def _run(sizes: dict[str, float]) -> Run:
    ranks, micro, batch = (int(sizes[name]) for name in ("data parallelism", "micro batch", "global batch"))
    hidden, layers, seq = (int(sizes[name]) for name in ("hidden size", "# layers", "sequence length"))
    heads = int(sizes["attention heads"])
    architecture = Architecture(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=4 * hidden,
        vocab=VOCABULARY,
        gated_mlp=False,
        rmsnorm=False,
        learned_positions=True,
        tied_embeddings=True,
    )
    params = count_params(architecture, seq)
    job = Job(params=params, trainable_params=params, architecture=architecture, seq=seq, global_batch=batch)
    job = replace(job, profiles=(_as_megatron(decoder_profile(job, "bf16-params"), heads, seq, hidden),))
    hosts = max(1, ranks // 8)
    words = f"{hosts}x8 a100-80 nvswitch, ib 8x200" if hosts > 1 else f"{ranks}x a100-80 nvswitch"
    machine = load_machine(words)
    plan = Plan(
        gpus=tuple(gpu.id for gpu in machine.gpus),
        nodes=hosts,
        strategy="ddp" if ranks > 1 else "single",
        micro_batch=micro,
        accumulation=batch // (micro * ranks),
        global_batch=batch,
        precision="bf16-params",
        gradient_dtype="bf16",
    )
    label = f"{ranks}x A100 {layers}x{hidden} seq {seq} micro {micro} batch {batch}"
    return Run(label, machine, job, plan, sizes["iteration time (ms)"] / 1e3)


def _as_megatron(profile: Profile, heads: int, seq: int, hidden: int) -> Profile:
    scores = float(heads * seq * seq)
    dropouts = 2 * DROPOUT * hidden * seq

    def block(unit: Unit) -> Unit:
        products = 2 * unit.forward.attention.per_sample  # of the whole square, not of what a mask leaves
        forward = _with(unit.forward, products, SCORES_FORWARD * scores + dropouts, LAUNCHES_FORWARD)
        backward = _with(unit.backward, 2 * products, SCORES_BACKWARD * scores + dropouts, LAUNCHES_BACKWARD)
        traffic = replace(backward.traffic, fixed=backward.traffic.fixed + MAIN_GRADIENTS * unit.params)
        return replace(unit, forward=forward, backward=replace(backward, traffic=traffic))

    units = [block(unit) if unit.kind == "block" else unit for unit in profile.units]
    units[-1] = replace(units[-1], backward=_with(units[-1].backward, 0.0, LOSS * VOCABULARY * seq, 0))
    return replace(profile, units=tuple(units))


def _with(kernels: Kernels, matmul: float, traffic: float, launches: int) -> Kernels:
    """Replace fused attention by products and traffic, each for one sample."""
    return replace(
        kernels,
        attention=Amount(),
        matmul=replace(kernels.matmul, per_sample=kernels.matmul.per_sample + matmul),
        traffic=replace(kernels.traffic, per_sample=kernels.traffic.per_sample + traffic),
        launches=kernels.launches + launches,
    )

"""Seconds of one optimizer step: a compute floor, and a timeline of the communication beside it.

A block's compute is a roofline: matrix products at the device's achieved FLOP/s plus element-wise traffic at its
achieved memory bandwidth, and never less than the host needs to launch it. The timelines then follow what PyTorch
does: gradients become ready in backward order, DDP's buckets close and queue on one stream; FSDP's gathers run one
block ahead and share their stream with the reduce-scatters. What outlasts the compute is exposed.
"""

from collections.abc import Callable
from typing import NamedTuple

from advisor.rules.device import BLOCK_HOST_SECONDS, FSDP_BLOCK_HOST_SECONDS, Device
from advisor.rules.job import Architecture, Job, block_matmul_params, block_params
from advisor.rules.machine import Value
from advisor.rules.memory import block_activation_bytes, gather_bytes, reduce_bytes
from advisor.rules.plan import Plan

Seconds = Callable[[float], float]  # bytes of the larger buffer -> seconds of one collective

MIB = 1024.0 * 1024.0
DEFAULT_BUCKET_MIB, FIRST_BUCKET_MIB = 25.0, 1.0  # torch.nn.parallel.DistributedDataParallel, bucket_cap_mb=None
PARTS = 4  # gradients of a block become ready in about as many pieces as it has large matrices
# Bytes of element-wise traffic for each byte kept for the backward pass, forward and backward together, and bytes per
# logit in the loss: measured on a 125M and a 1.4B GPT, one H200, autocast. A third of it is the forward's.
TRAFFIC = 7.0
LOGITS_TRAFFIC: dict[str | None, float] = {
    "bf16-autocast": 40.0,
    "fp16-autocast": 40.0,
    "bf16-params": 24.0,
    "fp32": 40.0,
}
CAST_TRAFFIC = 6.0  # autocast reads 4 and writes 2 bytes of each matrix weight, each micro-batch
OPTIMIZER_TRAFFIC = 28.0  # AdamW reads and writes fp32 weight, gradient and two moments: 7 x 4 bytes
OFFLOAD_TRAFFIC_PER_RANK = 15e9  # bytes per second of CPU Adam: 60-150e9 per socket, shared by its ranks


class StepTime(Value, frozen=True, kw_only=True):
    """Seconds of one optimizer step. `compute` is the step without any communication."""

    step: float
    compute: float
    communication: float  # all collectives, hidden or not

    @property
    def exposed(self) -> float:
        return self.step - self.compute


class Work(Value, frozen=True, kw_only=True):
    """Compute seconds of one micro-batch on one rank, piece by piece."""

    block_forward: float
    block_backward: float
    root: float  # embedding, head and loss, forward and backward
    optimizer: float


class Transfers(NamedTuple):
    """A plan's collectives as functions of bytes: FSDP's over its shard group, `reduce` over the replicas."""

    gather: Seconds
    scatter: Seconds
    reduce: Seconds
    host: Seconds  # one copy between GPU and host memory, for CPU offload


def attention_flops(arch: Architecture, seq: int) -> float:
    """Return forward FLOPs per token and block of the two attention products, half the square under a causal mask.

    2 products x 2 FLOP x s h / 2 = 2 s h. https://arxiv.org/abs/2204.02311, appendix B, counts the full square.
    """
    return 2.0 * seq * arch.hidden


def work_of(job: Job, plan: Plan, device: Device) -> Work:
    """Return the compute seconds of one micro-batch.

    Forward 2 FLOP per matrix parameter and token, backward twice that (once for a frozen base: no weight gradients),
    one more forward with full checkpointing. The host runs ahead of the GPU, so where it needs longer than the GPU for
    the whole micro-batch, everything slows down alike.
    """
    arch, tokens = job.architecture, plan.samples * job.seq
    matrix = block_matmul_params(arch)
    flops = tokens * (2.0 * matrix + attention_flops(arch, job.seq)) / device.flops
    traffic = TRAFFIC * block_activation_bytes(arch, plan.precision) * tokens
    autocast = plan.precision in ("bf16-autocast", "fp16-autocast")
    casts = CAST_TRAFFIC * matrix if autocast else 0.0
    frozen = job.trainable_params < job.params / 2
    forward = flops + (traffic / 3 + casts) / device.memory_bandwidth
    backward = flops * (1.0 if frozen else 2.0) + traffic * 2 / 3 / device.memory_bandwidth
    if plan.activation_checkpointing == "full":
        backward += forward
    logits = tokens * arch.vocab
    root = 6.0 * logits * arch.hidden / device.flops
    root += LOGITS_TRAFFIC[plan.precision] * logits / device.memory_bandwidth
    sharded = plan.strategy in ("fsdp", "hsdp")
    host = arch.layers * (BLOCK_HOST_SECONDS + (FSDP_BLOCK_HOST_SECONDS if sharded else 0.0))
    slowed = max(1.0, host / (arch.layers * (forward + backward) + root))
    updated = job.trainable_params / plan.shard_size
    bandwidth = OFFLOAD_TRAFFIC_PER_RANK if plan.cpu_offload else device.memory_bandwidth
    return Work(
        block_forward=forward * slowed,
        block_backward=backward * slowed,
        root=root * slowed,
        optimizer=OPTIMIZER_TRAFFIC * updated / bandwidth,
    )


def gradient_pieces(job: Job, work: Work, plan: Plan) -> list[tuple[float, float]]:
    """Return (seconds into the backward pass, bytes) of each piece of gradient, in the order they become ready."""
    arch = job.architecture
    trained = job.trainable_params / job.params * reduce_bytes(plan)
    block = block_params(arch) * trained
    root = max(0.0, job.trainable_params * reduce_bytes(plan) - arch.layers * block)
    head = work.root * 2 / 3
    pieces = arch.layers * PARTS
    inside = [(head + (i + 1) / PARTS * work.block_backward, block / PARTS) for i in range(pieces)]
    return [(head, root / 2), *inside, (head + arch.layers * work.block_backward, root / 2)]


def ddp_queue(pieces: list[tuple[float, float]], bucket_cap_mb: float | None, reduce: Seconds) -> tuple[float, float]:
    """Return when the last bucket is reduced, seconds into the backward pass, and the seconds that all buckets take.

    A bucket closes once its size reaches the cap (so it overshoots by up to one piece) and waits for the one before.
    With no explicit cap the first is 1 MiB.
    """
    cap = (FIRST_BUCKET_MIB if bucket_cap_mb is None else bucket_cap_mb) * MIB
    filled = free = busy = 0.0
    for index, (ready, size) in enumerate(pieces):
        filled += size
        if filled < cap and index < len(pieces) - 1:
            continue
        seconds = reduce(filled)
        free = max(free, ready) + seconds
        busy += seconds
        filled = 0.0
        cap = (DEFAULT_BUCKET_MIB if bucket_cap_mb is None else bucket_cap_mb) * MIB
    return free, busy


class BlockTransfers(NamedTuple):
    """Seconds that one block's weights and gradients travel in one micro-batch under FSDP."""

    gather: float
    regather: float  # again in the backward pass, 0 where the weights were kept
    scatter: float
    reduce: float  # over the replicas of hybrid sharding


def fsdp_micro_step(layers: int, forward: float, backward: float, block: BlockTransfers) -> float:
    """Return the seconds that all blocks take for one micro-batch under FSDP2.

    One stream computes; one gathers and reduce-scatters in the order of issue, the gather of the next block before the
    reduce-scatter of this one; a third reduces over the replicas.
    """
    compute = replicas = 0.0
    stream = gathered = block.gather
    for layer in range(layers):
        start = max(compute, gathered)
        if layer < layers - 1:
            stream = gathered = max(stream, compute) + block.gather
        compute = start + forward
    stream = gathered = max(stream, compute) + block.regather
    for layer in range(layers):
        start = max(compute, gathered)
        if layer < layers - 1:
            stream = gathered = max(stream, start) + block.regather
        compute = start + backward
        stream = max(stream, compute) + block.scatter
        replicas = max(replicas, stream) + block.reduce
    return max(compute, stream, replicas)


def fsdp_transfers(job: Job, plan: Plan, params: float, links: Transfers) -> BlockTransfers:
    """Return the transfers of a group of `params` parameters: gathered in the parameter dtype, gradients in theirs.

    Offload copies the fp32 shard to the GPU before each gather and the reduced gradient back.
    """
    c, r = gather_bytes(plan), reduce_bytes(plan) * job.trainable_params / job.params
    shard = links.host(4 * params / plan.shard_size) if plan.cpu_offload else 0.0
    gather = links.gather(c * params) + shard
    return BlockTransfers(
        gather=gather,
        regather=gather if plan.reshard_after_forward else 0.0,
        scatter=links.scatter(r * params) + shard,
        reduce=links.reduce(r * params / plan.shard_size) if plan.strategy == "hsdp" else 0.0,
    )


def fsdp_step(job: Job, plan: Plan, work: Work, links: Transfers) -> tuple[float, float]:
    """Return the seconds of all micro-batches, and of all their transfers, under FSDP or hybrid sharding.

    Each micro-batch gathers and reduce-scatters (keeping whole gradients instead would cost 4 P bytes); the replicas
    reduce once, in the last. The root's weights are gathered before the first block and its gradients leave last.
    """
    arch = job.architecture
    block = fsdp_transfers(job, plan, min(block_params(arch), job.params / arch.layers), links)
    root_params = max(0.0, job.params - arch.layers * block_params(arch))
    root = fsdp_transfers(job, plan, root_params, links)
    layers, last = arch.layers, block.reduce
    micro = fsdp_micro_step(layers, work.block_forward, work.block_backward, block._replace(reduce=0.0))
    final = fsdp_micro_step(layers, work.block_forward, work.block_backward, block)
    edges = root.gather + work.root + root.scatter
    step = (plan.accumulation - 1) * (micro + edges) + final + edges + root.reduce + work.optimizer
    moved = layers * (block.gather + block.regather + block.scatter) + root.gather + root.scatter
    return step, plan.accumulation * moved + layers * last + root.reduce


def step_time(job: Job, plan: Plan, device: Device, links: Transfers) -> StepTime:
    """Return the time of one optimizer step of the plan, with all its micro-batches."""
    layers = job.architecture.layers
    work = work_of(job, plan, device)
    micro = layers * (work.block_forward + work.block_backward) + work.root
    compute = plan.accumulation * micro + work.optimizer
    if plan.strategy == "single":
        return StepTime(step=compute, compute=compute, communication=0.0)
    if plan.strategy == "ddp":
        backward = work.root * 2 / 3 + layers * work.block_backward
        end, busy = ddp_queue(gradient_pieces(job, work, plan), plan.bucket_cap_mb, links.reduce)
        return StepTime(step=compute + max(0.0, end - backward), compute=compute, communication=busy)
    step, moved = fsdp_step(job, plan, work, links)
    return StepTime(step=max(step, compute), compute=compute, communication=moved)

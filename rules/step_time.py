"""Seconds of one optimizer step: a compute floor, and a timeline of the communication beside it.

Each part of the model is a roofline over its kernels, and the whole micro-batch never takes less than the host needs
to launch it. The timelines then follow what PyTorch does: gradients become ready in backward order, DDP's buckets close
and queue on one stream; FSDP's gathers run one block ahead and share their stream with the reduce-scatters. What
outlasts the compute is exposed; what runs beside it slows it down.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from advisor.rules.device import DDP_TENSOR_SECONDS, FSDP_BLOCK_SECONDS, FSDP_REGATHER_SECONDS, Device
from advisor.rules.job import Job
from advisor.rules.machine import Value
from advisor.rules.memory import gather_bytes, recomputed, reduce_bytes
from advisor.rules.plan import Plan
from advisor.rules.profile import Kernels, Profile

Seconds = Callable[[float], float]  # bytes of the larger buffer -> seconds of one collective

MIB = 1024.0 * 1024.0
DEFAULT_BUCKET_MIB, FIRST_BUCKET_MIB = 25.0, 1.0  # torch.nn.parallel.DistributedDataParallel, bucket_cap_mb=None
PARTS = 4  # gradients of a block become ready in about as many pieces as it has large matrices
OPTIMIZER_TRAFFIC = 28.0  # AdamW reads and writes fp32 weight, gradient and two moments: 7 x 4 bytes
SMOOTH = 6  # of the maximum of device and host, which do not overlap perfectly


class StepTime(Value, frozen=True, kw_only=True):
    """Seconds of one optimizer step. `compute` is the step without any communication."""

    step: float
    compute: float
    communication: float  # all collectives, hidden or not

    @property
    def exposed(self) -> float:
        return self.step - self.compute


class Stage(NamedTuple):
    """One part of the model in one micro-batch."""

    forward: float  # seconds
    backward: float
    params: int
    trainable: int
    block: bool  # FSDP gathers it on its own


class Work(NamedTuple):
    """Compute of one rank: the stages of a micro-batch in forward order, and the optimizer."""

    stages: tuple[Stage, ...]
    optimizer: float  # seconds
    bound: float  # how much of a delay of the device delays the micro-batch: 1 unless the host is the slower one

    @property
    def micro(self) -> float:
        """Seconds of one micro-batch without communication."""
        return sum(stage.forward + stage.backward for stage in self.stages)


class Transfers(NamedTuple):
    """A plan's collectives as functions of bytes: FSDP's over its shard group, `reduce` over the replicas."""

    gather: Seconds
    scatter: Seconds
    reduce: Seconds
    host: Seconds  # one copy between GPU and host memory, for CPU offload
    overlap: float = 0.0  # seconds that compute loses for each second of collectives beside it


def kernel_seconds(kernels: Kernels, samples: int, device: Device) -> float:
    """Return the device's seconds for the kernels of one part in one direction."""
    return (
        kernels.matmul.at(samples) / device.matmul
        + kernels.attention.at(samples) / device.attention
        + kernels.convolution.at(samples) / device.convolution
        + kernels.batch_norm.at(samples) / device.batch_norm
        + kernels.traffic.at(samples) / device.elementwise
        + kernels.launches * device.kernel_seconds
    )


def host_seconds(profile: Profile, plan: Plan, device: Device) -> float:
    """Return the seconds that the host needs to launch one micro-batch, with what the strategy adds to it."""
    launches = sum(
        (unit.count + sum(again)) * unit.forward.launches + unit.count * unit.backward.launches
        for unit, again in recomputed(profile, plan)
    )
    seconds = launches * device.launch_seconds
    if device.launch_seconds == 0.0:
        return 0.0
    if plan.strategy in ("fsdp", "hsdp"):
        groups = 1 + sum(unit.count for unit in profile.units if unit.kind == "block")
        seconds += groups * (FSDP_BLOCK_SECONDS + plan.reshard_after_forward * FSDP_REGATHER_SECONDS)
    elif plan.strategy == "ddp":
        synchronised = 1.0 if plan.sync_each_micro_batch else 1.0 / plan.accumulation
        seconds += synchronised * DDP_TENSOR_SECONDS * sum(unit.count * unit.tensors for unit in profile.units)
    return seconds


def work_of(job: Job, profile: Profile, plan: Plan, device: Device) -> Work:
    """Return the compute seconds of one micro-batch and of the optimizer.

    Checkpointing runs a block's forward again before its backward. The host runs ahead of the device, so where it needs
    longer for the whole micro-batch, everything slows down alike.
    """
    stages: list[Stage] = []
    for unit, again in recomputed(profile, plan):
        forward = kernel_seconds(unit.forward, plan.samples, device)
        backward = kernel_seconds(unit.backward, plan.samples, device)
        block = unit.kind == "block"
        kept = Stage(forward, backward, unit.params, unit.trainable, block)
        longer = kept._replace(backward=backward + forward)
        stages += [longer if one else kept for one in again]
    busy = sum(stage.forward + stage.backward for stage in stages)
    host = host_seconds(profile, plan, device)
    slowed = (1 + (host / busy) ** SMOOTH) ** (1 / SMOOTH) if busy else 1.0
    return Work(
        stages=tuple(s._replace(forward=s.forward * slowed, backward=s.backward * slowed) for s in stages),
        optimizer=OPTIMIZER_TRAFFIC * job.trainable_params / plan.shard_size / device.streaming,
        bound=slowed ** (1 - SMOOTH),  # the derivative of the smooth maximum
    )


def gradient_pieces(work: Work, plan: Plan) -> Iterator[tuple[float, float]]:
    """Yield (seconds into the backward pass, bytes) of each piece of gradient, in the order they become ready."""
    now = 0.0
    for stage in reversed(work.stages):
        parts = PARTS if stage.block else 1
        for _ in range(parts):
            now += stage.backward / parts
            if stage.trainable:
                yield now, stage.trainable * reduce_bytes(plan) / parts


def ddp_queue(
    pieces: Sequence[tuple[float, float]], bucket_cap_mb: float | None, reduce: Seconds
) -> tuple[float, float]:
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


def fsdp_micro_step(blocks: Sequence[tuple[Stage, BlockTransfers]]) -> float:
    """Return the seconds that all blocks take for one micro-batch under FSDP2.

    One stream computes; one gathers and reduce-scatters in the order of issue, the gather of the next block before the
    reduce-scatter of this one; a third reduces over the replicas.
    """
    if not blocks:
        return 0.0
    compute = replicas = 0.0
    stream = gathered = blocks[0][1].gather
    for index, (stage, _) in enumerate(blocks):
        start = max(compute, gathered)
        if index < len(blocks) - 1:
            stream = gathered = max(stream, compute) + blocks[index + 1][1].gather
        compute = start + stage.forward
    stream = gathered = max(stream, compute) + blocks[-1][1].regather
    for index in reversed(range(len(blocks))):
        stage, own = blocks[index]
        start = max(compute, gathered)
        if index:
            stream = gathered = max(stream, start) + blocks[index - 1][1].regather
        compute = start + stage.backward
        stream = max(stream, compute) + own.scatter
        replicas = max(replicas, stream) + own.reduce
    return max(compute, stream, replicas)


def fsdp_transfers(plan: Plan, params: int, trainable: int, links: Transfers) -> BlockTransfers:
    """Return the transfers of a group of parameters: gathered in the parameter dtype, gradients in theirs.

    Offload copies the fp32 shard to the GPU before each gather and the reduced gradient back.
    """
    c, r = gather_bytes(plan), reduce_bytes(plan)
    shard = links.host(4 * params / plan.shard_size) if plan.cpu_offload else 0.0
    gather = links.gather(c * params) + shard
    return BlockTransfers(
        gather=gather,
        regather=gather if plan.reshard_after_forward else 0.0,
        scatter=links.scatter(r * trainable) + shard,
        reduce=links.reduce(r * trainable / plan.shard_size) if plan.strategy == "hsdp" else 0.0,
    )


def fsdp_step(plan: Plan, work: Work, links: Transfers) -> tuple[float, float]:
    """Return the seconds of all micro-batches, and of all their transfers, under FSDP or hybrid sharding.

    Each micro-batch gathers; it reduce-scatters as well, or the last one does alone; the replicas reduce once, in the
    last. The root's weights are gathered before the first block and its gradients leave last.
    """
    blocks = [
        (stage, fsdp_transfers(plan, stage.params, stage.trainable, links)) for stage in work.stages if stage.block
    ]
    rest = [stage for stage in work.stages if not stage.block]
    root = fsdp_transfers(plan, sum(s.params for s in rest), sum(s.trainable for s in rest), links)
    scatters = 1.0 if plan.sync_each_micro_batch else 0.0
    early = [(stage, own._replace(reduce=0.0, scatter=scatters * own.scatter)) for stage, own in blocks]
    inside = sum(stage.forward + stage.backward for stage in rest)
    micro = (
        fsdp_micro_step([_slowed(*block, work.bound * links.overlap) for block in early])
        + root.gather
        + inside
        + scatters * root.scatter
    )
    final = (
        fsdp_micro_step([_slowed(*block, work.bound * links.overlap) for block in blocks])
        + root.gather
        + inside
        + root.scatter
        + root.reduce
    )
    others = plan.accumulation - 1
    gathered = sum(own.gather + own.regather for _, own in blocks) + root.gather
    scattered = sum(own.scatter for _, own in blocks) + root.scatter
    moved = (others + 1) * gathered + (others * scatters + 1) * scattered
    return others * micro + final + work.optimizer, moved + sum(own.reduce for _, own in blocks) + root.reduce


def _slowed(stage: Stage, own: BlockTransfers, share: float) -> tuple[Stage, BlockTransfers]:
    """Lengthen a block by the share of the transfers beside it that its kernels lose."""
    forward = stage.forward + share * min(stage.forward, own.gather)
    backward = stage.backward + share * min(stage.backward, own.regather + own.scatter)
    return stage._replace(forward=forward, backward=backward), own


def ddp_step(plan: Plan, work: Work, links: Transfers) -> tuple[float, float]:
    """Return the seconds of all micro-batches, and of all their transfers, under DDP.

    Only a backward pass that synchronises has transfers beside it, and is slowed by them.
    """
    backward = sum(stage.backward for stage in work.stages)
    _, moved = ddp_queue(list(gradient_pieces(work, plan)), plan.bucket_cap_mb, links.reduce)
    longer = 1 + work.bound * links.overlap * min(moved, backward) / backward if backward else 1.0
    slowed = work._replace(stages=tuple(s._replace(backward=s.backward * longer) for s in work.stages))
    end, _ = ddp_queue(list(gradient_pieces(slowed, plan)), plan.bucket_cap_mb, links.reduce)
    synchronised = work.micro - backward + max(backward * longer, end)
    times = plan.accumulation if plan.sync_each_micro_batch else 1
    return times * synchronised + (plan.accumulation - times) * work.micro + work.optimizer, times * moved


def step_time(job: Job, profile: Profile, plan: Plan, device: Device, links: Transfers) -> StepTime:
    """Return the time of one optimizer step of the plan, with all its micro-batches."""
    work = work_of(job, profile, plan, device)
    compute = plan.accumulation * work.micro + work.optimizer
    if plan.strategy == "single":
        return StepTime(step=compute, compute=compute, communication=0.0)
    step, moved = ddp_step(plan, work, links) if plan.strategy == "ddp" else fsdp_step(plan, work, links)
    return StepTime(step=max(step, compute), compute=compute, communication=moved)

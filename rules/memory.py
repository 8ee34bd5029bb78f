"""Peak memory of one rank, part by part, at each moment of a step.

Symbols: P parameters, k ranks that share one copy of the states. All results are bytes per rank.

What a micro-batch keeps alive is the profile's (`rules.profile`); this file adds the states and what a strategy holds.
Sources: ZeRO, https://arxiv.org/abs/1910.02054. Constants marked "measured" come from steps on two H200 (PyTorch 2.11),
see docs/models.md.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from advisor.rules.decoder_kernels import NF4_BYTES
from advisor.rules.job import Job, Optimizer
from advisor.rules.machine import Machine, Value
from advisor.rules.plan import Memory, Plan
from advisor.rules.profile import Moment, Profile, Unit

# Bytes of optimizer state per trainable parameter. 8-bit Adam: two bytes and block scales,
# https://arxiv.org/abs/2110.02861; Adafactor keeps rows and columns only, https://arxiv.org/abs/1804.04235.
OPTIMIZER_BYTES: dict[Optimizer, float] = {
    "adamw": 8.0,
    "adamw-8bit": 2.04,
    "adafactor": 0.02,
    "sgd": 0.0,
    "sgd-momentum": 4.0,
    "muon": 4.0,
}

FROZEN_BYTES = 2.0  # a frozen base is kept in bf16
WORKSPACE_BYTES = 130e6  # cuBLAS and cuDNN, in the allocator's books; measured 0.07-0.2e9
CONTEXT_BYTES = 820e6  # CUDA context and kernels, measured with one process
NVLINK_COMMUNICATOR_BYTES = 870e6  # NCCL buffers, measured; they grow with channels, github.com/NVIDIA/nccl/issues/986
OTHER_COMMUNICATOR_BYTES = 390e6  # through host memory or sockets, measured
CPU_CONTEXT_BYTES = 400e6  # a Python process with torch, resident
# What the caching allocator holds beyond its peak: partly used blocks, and as much as the largest tensor (often the
# logits), for which it finds no hole. Measured on the 125M GPT, ViT-L and ResNet-50.
SLACK_BYTES = 0.5e9  # where no tensor is larger
SLACK_BYTES_SHARDED = 0.65e9  # the same under FSDP, whose streams have pools of their own
SLACK = 0.015  # of the peak
SLACK_ACCUMULATING = 0.03  # of the peak, where gradients are kept over micro-batches
CONVOLUTION_BYTES = 0.6e9  # workspaces that cuDNN asks for while it runs a convolution, ResNet-50
LARGEST_SHARE = 0.25  # of the peak, that the largest tensor is counted to
USABLE = 0.95  # of what the driver reports: the models are short by up to 5 % of measured steps


class States(Value, frozen=True, kw_only=True):
    """What stays on a rank from step to step."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer


class Peak(NamedTuple):
    """What is live at the worst moment of a micro-batch, and the gradients that are there with it."""

    name: str
    live: float
    gradients: float


def states(job: Job, shard_size: int = 1) -> States:
    """Return the model states of one of `shard_size` ranks.

    fp32 weights and gradients of what is trained, the optimizer's state, and the frozen base in bf16 or nf4, all
    divided by k. Example: AdamW, 13e9 parameters, k = 1: 13e9 x (4 + 4 + 8) = 208e9; k = 4: 52e9.
    """
    trainable = job.trainable_params
    base = job.params if job.quantize else job.params - trainable
    frozen = base * (NF4_BYTES if job.quantize else FROZEN_BYTES)
    return States(
        parameters=(4 * trainable + frozen) / shard_size,
        gradients=4 * trainable / shard_size,
        optimizer=OPTIMIZER_BYTES[job.optimizer] * trainable / shard_size,
    )


def gather_bytes(plan: Plan) -> int:
    """Return the bytes per parameter that FSDP gathers: its parameter dtype."""
    return 2 if plan.precision == "bf16-params" else 4


def reduce_bytes(plan: Plan) -> int:
    """Return the bytes per gradient on the wire."""
    return 4 if plan.gradient_dtype == "fp32" else 2


def recomputed(profile: Profile, plan: Plan) -> Iterator[tuple[Unit, tuple[bool, ...]]]:
    """Yield each unit and, for each time it comes, whether the backward pass runs its forward again.

    Full checkpointing does so with every block, selective with the first, third, fifth, ... Example: a unit of 5 blocks
    under selective checkpointing: (True, False, True, False, True).
    """
    every = {"none": 0, "full": 1, "selective": 2}[plan.activation_checkpointing]
    blocks = 0
    for unit in profile.units:
        if unit.kind != "block" or not every:
            yield unit, (False,) * unit.count
            continue
        yield unit, tuple(index % every == 0 for index in range(blocks, blocks + unit.count))
        blocks += unit.count


def moments(profile: Profile, plan: Plan) -> Iterator[tuple[Moment, float]]:
    """Yield the profile's moments with the bytes live at each, under the plan's checkpointing.

    Of the blocks that stand before a moment, those that are run again in the backward pass keep only what entered them.
    """
    saved: list[float] = []
    for unit, again in recomputed(profile, plan):
        spared = max(0.0, unit.kept.at(plan.samples) - unit.entry.at(plan.samples))
        saved += [spared if one else 0.0 for one in again]
    until = list(accumulate(saved, initial=0.0))
    for moment in profile.moments:
        yield moment, moment.live.at(plan.samples) - until[min(moment.kept, len(until) - 1)]


def peak(profile: Profile, plan: Plan) -> Peak:
    """Return the moment of a micro-batch at which activations and gradients together are largest.

    Gradients grow as the backward pass completes them; with accumulation they are whole from the second micro-batch
    on, and unsharded in the dtype that is reduced unless each micro-batch reduces them; under DDP they are views of
    buckets, which are counted as communication.
    """
    each = 0.0 if plan.strategy == "ddp" else 4.0 / plan.shard_size
    whole = each * profile.trainable if plan.accumulation > 1 else 0.0
    if plan.strategy in ("fsdp", "hsdp") and plan.accumulation > 1 and not plan.sync_each_micro_batch:
        whole = float(reduce_bytes(plan) * profile.trainable)
    found = (Peak(moment.name, live, max(whole, each * moment.ready)) for moment, live in moments(profile, plan))
    return max(found, key=lambda one: one.live + one.gradients)


def communication_bytes(profile: Profile, plan: Plan) -> float:
    """Return the buffers that the strategy adds.

    DDP: buckets hold the gradients (or a second set of them, without views), and while they are rebuilt in the second
    step the first ones are still there: 8 P, as measured; 4 P more where `no_sync` keeps separate gradients.
    FSDP: gathered weights of up to three blocks, gradients of one, its reduce-scatter input and output, the root that
    stays gathered: (3 c + c + r) B + c P_root + r B / k; without resharding, all weights: c P.
    """
    trainable = profile.trainable
    if plan.strategy == "ddp":
        return 4.0 * trainable * (3 if plan.accumulation > 1 and not plan.sync_each_micro_batch else 2)
    if plan.strategy == "single":
        return 0.0
    block = max((unit.params for unit in profile.units if unit.kind == "block"), default=0)
    c, r = gather_bytes(plan), reduce_bytes(plan) * trainable / max(1, profile.params)
    transient = (4 * c + r) * block + r * block / plan.shard_size * (2 if plan.strategy == "hsdp" else 1)
    return transient + c * (root_params(profile) if plan.reshard_after_forward else profile.params)


def root_params(profile: Profile) -> int:
    """Count the parameters outside the blocks."""
    return sum(unit.count * unit.params for unit in profile.units if unit.kind == "root")


def pool_bytes(profile: Profile, plan: Plan, allocated: float, gradients: float) -> float:
    """Return what the allocator holds beyond its peak, of which `gradients` bytes are gradients.

    FSDP reduce-scatters on a stream of its own, whose memory the others can't use: the sharded gradients, and the
    root's whole ones.
    """
    held = (SLACK_ACCUMULATING if plan.accumulation > 1 else SLACK) * allocated
    if _convolves(profile):
        held += CONVOLUTION_BYTES
    if plan.strategy in ("fsdp", "hsdp"):
        sharded = 0.0 if plan.cpu_offload else 4.0 * profile.trainable / plan.shard_size
        return held + SLACK_BYTES_SHARDED + max(0.0, sharded - gradients) + reduce_bytes(plan) * root_params(profile)
    return held + max(SLACK_BYTES, min(profile.largest.at(plan.samples), LARGEST_SHARE * allocated))


def _convolves(profile: Profile) -> bool:
    """Say whether a model computes mostly by convolutions."""
    kernels = [(unit.count, unit.forward) for unit in profile.units]
    convolution = sum(count * kernel.convolution.at(1) for count, kernel in kernels)
    return convolution > sum(count * kernel.matmul.at(1) for count, kernel in kernels)


def context_bytes(plan: Plan, machine: Machine) -> float:
    """Return what the driver shows and the allocator does not: CUDA context and one or two NCCL communicators."""
    if plan.launcher.device == "cpu":
        return CPU_CONTEXT_BYTES
    if plan.strategy == "single":
        return CONTEXT_BYTES
    used = set(plan.gpus)
    nvlink = any(link.kind == "nvlink" and link.a in used and link.b in used for link in machine.links)
    communicator = NVLINK_COMMUNICATOR_BYTES if nvlink else OTHER_COMMUNICATOR_BYTES
    return CONTEXT_BYTES + communicator * (2 if plan.strategy == "hsdp" else 1)


def available_bytes(plan: Plan, machine: Machine) -> int:
    """Return what the plan's smallest GPU can give: its memory less what was in use at the time of the probe."""
    free = [(gpu.memory or 0) - (gpu.memory_used or 0) for gpu in machine.gpus if gpu.id in set(plan.gpus)]
    return int(USABLE * min(free, default=0))


def host_share(plan: Plan, machine: Machine) -> int | None:
    """Return the host memory that each of the plan's ranks on a host can have, bytes; None where it is not known."""
    host = machine.host.memory_available or machine.host.memory
    return None if host is None else int(USABLE * host / len(plan.gpus))


def memory_of(job: Job, profile: Profile, plan: Plan, machine: Machine) -> Memory:
    """Return the peak memory of one rank over a step.

    It is reached inside a micro-batch (see `peak`), or while the optimizer works: all gradients, and one more copy of
    the parameters where it works on all tensors at once, as torch's default on GPUs does.
    """
    held = states(job, plan.shard_size)
    communication = communication_bytes(profile, plan)
    inside = peak(profile, plan)
    separate = 0.0 if plan.strategy == "ddp" else held.gradients
    temporaries = 4.0 * job.trainable_params / plan.shard_size
    gradients, live, extra = inside.gradients, inside.live, 0.0
    name = inside.name
    if separate + temporaries > gradients + live:
        gradients, live, extra, name = separate, 0.0, temporaries, "optimizer step"
    on_gpu = 0.0 if plan.cpu_offload else 1.0
    if plan.cpu_offload:
        gradients = extra = 0.0
    optimizer = held.optimizer * on_gpu + extra
    work = live + (0.0 if plan.launcher.device == "cpu" else WORKSPACE_BYTES)
    allocated = held.parameters * on_gpu + optimizer + gradients + work + communication
    context = context_bytes(plan, machine)
    if plan.launcher.device != "cpu":
        context += pool_bytes(profile, plan, allocated, gradients)
    logits = min(profile.logits.at(plan.samples), live)
    return Memory(
        total=int(allocated + context),
        available=available_bytes(plan, machine),
        parameters=int(held.parameters * on_gpu),
        gradients=int(gradients),
        optimizer=int(optimizer),
        activations=int(work - logits),
        logits=int(logits),
        communication=int(communication),
        context=int(context),
        peak=name,
        host=int(held.total) if plan.cpu_offload else 0,
        host_available=host_share(plan, machine),
    )

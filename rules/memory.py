"""Peak memory of one rank, part by part, at each moment of a step.

Symbols: P parameters, k ranks that share one copy of the states, T = micro-batch x seq tokens, h hidden, f MLP width,
V vocabulary, L layers. All results are bytes per rank.

Sources: ZeRO, https://arxiv.org/abs/1910.02054 (states); https://arxiv.org/abs/2205.05198 (activations), here with
attention by SDPA, which does not keep the score matrix. Constants marked "measured" come from steps of GPTs on two H200
(PyTorch 2.11), see docs/models.md.
"""

from advisor.rules.job import Architecture, Job, Optimizer, block_matmul_params, block_params
from advisor.rules.machine import Machine, Value
from advisor.rules.plan import Memory, Plan

# Bytes of optimizer state per trainable parameter. 8-bit Adam: two bytes and block scales,
# https://arxiv.org/abs/2110.02861; Adafactor keeps rows and columns only, https://arxiv.org/abs/1804.04235.
OPTIMIZER_BYTES: dict[Optimizer, float] = {
    "adamw": 8.0,
    "adamw-8bit": 2.04,
    "adafactor": 0.02,
    "sgd": 0.0,
    "sgd-momentum": 4.0,
}
NF4_BYTES = 0.516  # per parameter: 4 bits and double-quantised scales, https://arxiv.org/abs/2305.14314
FROZEN_BYTES = 2.0  # a frozen base is kept in bf16
# Bytes per logit at the peak of the loss, measured.
LOGITS_BYTES: dict[str | None, float] = {
    "bf16-autocast": 10.0,
    "fp16-autocast": 10.0,
    "bf16-params": 6.0,
    "fp32": 12.0,
}
CONTEXT_BYTES = 600e6  # CUDA context and kernels; measured, 0.3-0.7e9 reported
NVLINK_COMMUNICATOR_BYTES = 1.1e9  # NCCL buffers, measured; they grow with channels, github.com/NVIDIA/nccl/issues/986
OTHER_COMMUNICATOR_BYTES = 0.6e9  # through host memory or sockets, measured
CPU_CONTEXT_BYTES = 400e6  # a Python process with torch, resident
SLACK = 0.05  # of the allocator's peak, held in partly used blocks; 3-10 % is common
LOGITS_SLACK = 0.25  # of the logits' peak: their large blocks fit no other tensor; measured
USABLE = 0.92  # of what the driver reports: the models are short by up to 13 % on measured steps, 4 % in the median


class States(Value, frozen=True, kw_only=True):
    """What stays on a rank from step to step."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer


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


def block_activation_bytes(arch: Architecture, precision: str | None) -> float:
    """Return the bytes that one block keeps for the backward pass, per token.

    bf16: two norm inputs, q, k, v, attention output, the inputs of the matrices: 12 h + 4 h_kv, and the MLP: 4 f, or
    8 f with SwiGLU. An RMSNorm that is no fused kernel adds 12 h of fp32 steps. Autocast keeps the residual stream in
    fp32: + 4 h, and 18 h where RMSNorm is decomposed. fp32 doubles bf16.
    Example: GPT, f = 4 h, h = 2048: 32 h = 65,536 in bf16, 36 h = 73,728 under autocast.
    """
    h = arch.hidden
    h_kv = arch.kv_heads * (h // arch.heads)
    sixteen_bit = 12 * h + 4 * h_kv + (8 if arch.gated_mlp else 4) * arch.ffn + (12 * h if arch.rmsnorm else 0)
    if precision == "fp32":
        return 2.0 * sixteen_bit
    if precision == "bf16-params":
        return float(sixteen_bit)
    return float(sixteen_bit + (18 if arch.rmsnorm else 4) * h)


def activation_bytes(job: Job, plan: Plan) -> float:
    """Return what all blocks keep at the end of the forward pass.

    With full checkpointing each block keeps its input alone (2 h, 4 h where the residual is fp32) and one block at a
    time is whole. Autocast also caches 2 bytes of each matrix weight until backward has used it.
    """
    arch = job.architecture
    tokens = plan.samples * job.seq
    block = block_activation_bytes(arch, plan.precision) * tokens
    residual = (2 if plan.precision == "bf16-params" else 4) * arch.hidden * tokens
    autocast = plan.precision in ("bf16-autocast", "fp16-autocast")
    block_cache = 2.0 * block_matmul_params(arch) if autocast else 0.0
    head = 2.5 * residual + (2.0 * arch.vocab * arch.hidden if autocast else 0.0)
    if plan.activation_checkpointing == "full":
        return arch.layers * residual + block + block_cache + head
    return arch.layers * (block + block_cache) + head


def logits_bytes(job: Job, plan: Plan) -> float:
    """Return the peak of logits, log-probabilities and their gradients inside the loss, T V x 6 to 12 bytes.

    Example: T = 8192, V = 128256 under autocast: 8192 x 128256 x 10 = 10.5e9.
    """
    return LOGITS_BYTES[plan.precision] * plan.samples * job.seq * job.architecture.vocab


def gather_bytes(plan: Plan) -> int:
    """Return the bytes per parameter that FSDP gathers: its parameter dtype."""
    return 2 if plan.precision == "bf16-params" else 4


def reduce_bytes(plan: Plan) -> int:
    """Return the bytes per gradient on the wire."""
    return 4 if plan.gradient_dtype == "fp32" else 2


def communication_bytes(job: Job, plan: Plan) -> float:
    """Return the buffers that the strategy adds.

    DDP: buckets hold a second set of gradients (or are the gradients, with views), and the first iterations hold the
    initial single bucket beside the rebuilt ones: 8 P, as measured; 4 P more where `no_sync` keeps separate gradients.
    FSDP: gathered weights of up to three blocks, gradients of one, its reduce-scatter input and output, the root that
    stays gathered: (3 c + c + r) B + c P_root + r B / k; without resharding, all weights: c P.
    """
    trainable = job.trainable_params
    if plan.strategy == "ddp":
        return 4.0 * trainable * (3 if plan.accumulation > 1 else 2)
    if plan.strategy == "single":
        return 0.0
    arch = job.architecture
    block = block_params(arch) * job.params / max(job.params, arch.layers * block_params(arch))
    root = max(0.0, job.params - arch.layers * block)
    c, r = gather_bytes(plan), reduce_bytes(plan) * trainable / job.params
    transient = (4 * c + r) * block + r * block / plan.shard_size * (2 if plan.strategy == "hsdp" else 1)
    if plan.reshard_after_forward:
        return transient + c * root
    return transient + c * job.params


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


def memory_of(job: Job, plan: Plan, machine: Machine) -> Memory:
    """Return the peak memory of one rank over the moments of a step.

    Moments: `loss` (activations and logits are whole), `backward` (gradients are whole, activations gone but for one
    block), `optimizer` (one more copy of the parameters where the optimizer works on all tensors at once, as
    torch's default on GPUs does). With accumulation the gradients are there at the loss as well.
    """
    held = states(job, plan.shard_size)
    communication = communication_bytes(job, plan)
    activations = activation_bytes(job, plan)
    block = block_activation_bytes(job.architecture, plan.precision) * plan.samples * job.seq
    ddp = plan.strategy == "ddp"
    separate_gradients = 0.0 if ddp else held.gradients  # DDP's buckets are counted in `communication`
    gradients_at_loss = separate_gradients if plan.accumulation > 1 else 0.0
    moments = (
        # gradients, activations, logits, optimizer temporaries
        (gradients_at_loss, activations, logits_bytes(job, plan), 0.0),
        (separate_gradients, block, 0.0, 0.0),
        (separate_gradients, 0.0, 0.0, 4.0 * job.trainable_params / plan.shard_size),
    )
    gradients, live, logits, temporaries = max(moments, key=sum)
    on_gpu = 0.0 if plan.cpu_offload else 1.0
    if plan.cpu_offload:
        gradients = temporaries = 0.0
    allocated = (held.parameters + held.optimizer) * on_gpu + gradients + temporaries + live + logits + communication
    context = context_bytes(plan, machine) + SLACK * allocated + LOGITS_SLACK * logits_bytes(job, plan)
    return Memory(
        total=int(allocated + context),
        available=available_bytes(plan, machine),
        parameters=int(held.parameters * on_gpu),
        gradients=int(gradients),
        optimizer=int(held.optimizer * on_gpu + temporaries),
        activations=int(live),
        logits=int(logits),
        communication=int(communication),
        context=int(context),
        host=int(held.total) if plan.cpu_offload else 0,
        host_available=host_share(plan, machine),
    )

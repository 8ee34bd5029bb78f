"""Plans worth pricing: each strategy, on each useful group of GPUs, at the job's global batch."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from advisor.rules.cpu_ranks import is_cpu
from advisor.rules.device import supports_bf16
from advisor.rules.job import Job
from advisor.rules.machine import Machine
from advisor.rules.plan import Checkpointing, Launcher, Plan, Strategy
from advisor.rules.profile import Precision
from advisor.rules.shard_from import shard_from
from advisor.rules.subsets import gpu_groups
from advisor.rules.topology import islands

MAX_MICRO_BATCH = 256  # samples; throughput has long flattened there
BUCKET_CAPS_MB = (50.0, 100.0, 200.0)  # MiB, tried beside DDP's own default


class Group(NamedTuple):
    """Which GPUs of each host, on how many hosts."""

    gpus: tuple[str, ...]
    nodes: int

    @property
    def ranks(self) -> int:
        return len(self.gpus) * self.nodes


class Shape(NamedTuple):
    """A plan without its batch: what is replicated, sharded and recomputed."""

    strategy: Strategy
    shard_size: int = 1
    reshard_after_forward: bool = True
    cpu_offload: bool = False
    sync_each_micro_batch: bool = False


def useful_groups(machine: Machine, gpus: int | None, nodes: int | None) -> list[Group]:
    """List the groups of GPUs to plan for, the whole machine first; `gpus` and `nodes` fix a size where given.

    More than one host is only useful with all its GPUs.
    """
    everything = tuple(gpu.id for gpu in machine.gpus)
    wanted = [members for members in gpu_groups(machine) if gpus is None or len(members) == gpus]
    lone = [members for members in wanted if len(members) == 1][:1]
    groups = [Group(members, 1) for members in [*(m for m in wanted if len(m) > 1), *lone]]
    sizes = sorted({nodes} if nodes else {1, 2, machine.nodes} & set(range(1, machine.nodes + 1)), reverse=True)
    several = [Group(everything, size) for size in sizes if size > 1 and gpus in (None, len(everything))]
    return several + ([] if nodes and nodes > 1 else groups)


def shapes(machine: Machine, group: Group, *, offload: bool) -> Iterator[Shape]:
    """Propose the strategies that make sense on a group; with `offload`, those that keep the states in host memory."""
    ranks = group.ranks
    if offload:
        yield Shape("fsdp", ranks, cpu_offload=True, sync_each_micro_batch=True)
        return
    if ranks == 1:
        yield Shape("single")
        return
    yield Shape("ddp")
    yield from _sharded("fsdp", ranks)
    for inner in hybrid_shard_sizes(machine, group):
        yield from _sharded("hsdp", inner)


def _sharded(strategy: Strategy, size: int) -> Iterator[Shape]:
    """Propose the ways to shard: weights kept after the forward pass or not, gradients reduced each time or late."""
    for kept, late in ((False, False), (True, False), (False, True), (True, True)):
        yield Shape(strategy, size, reshard_after_forward=not kept, sync_each_micro_batch=not late)


def hybrid_shard_sizes(machine: Machine, group: Group) -> list[int]:
    """Return how many ranks may share one copy under hybrid sharding, with at least two copies in all.

    On several hosts those of 1, 2, 4, ... hosts; on one host those of an island. None where there is no slower level to
    spare: one host that is one island, or islands of unequal size.
    """
    if group.nodes > 1:
        hosts = [2**k for k in range(group.nodes.bit_length()) if group.nodes % 2 ** (k + 1) == 0]
        return [size for size in (len(group.gpus) * count for count in hosts or [1]) if 1 < size < group.ranks]
    members = set(group.gpus)
    inside = [len(members & set(island)) for island in islands(machine) if members & set(island)]
    return inside[:1] if len(inside) > 1 and len(set(inside)) == 1 and inside[0] > 1 else []


def island_order(machine: Machine, gpus: tuple[str, ...]) -> tuple[str, ...]:
    """Order GPUs so that those of one island follow each other, as the shard groups of a 2-D mesh need them."""
    return tuple(gpu for island in islands(machine) for gpu in island if gpu in gpus)


def micro_batches(job: Job, ranks: int) -> list[int]:
    """List the micro-batches that keep the global batch exactly, the largest first; none if it cannot be split."""
    if job.global_batch % ranks:
        return []
    share = job.global_batch // ranks
    if job.micro_batch:
        return [job.micro_batch] if share % job.micro_batch == 0 else []
    return [size for size in range(min(share, MAX_MICRO_BATCH), 0, -1) if share % size == 0]


def plan_precision(job: Job, machine: Machine, group: Group, strategy: Strategy) -> Precision:
    """Choose how the job's precision is had: autocast, or FSDP's own 16-bit weights; fp32 on CPUs, fp16 before sm80."""
    gpus = [machine.gpu(gpu_id) for gpu_id in group.gpus]
    if job.precision == "fp32" or any(is_cpu(gpu) for gpu in gpus):
        return "fp32"
    if job.precision == "fp16" or not all(supports_bf16(gpu) for gpu in gpus):
        return "fp16-autocast"
    return "bf16-params" if strategy in ("fsdp", "hsdp") else "bf16-autocast"


def launcher_of(machine: Machine, group: Group) -> Launcher:
    """Give each rank its share of the processors this process may use; torchrun alone would give it one thread."""
    ranks = len(group.gpus)
    cpus = machine.host.cpus
    return Launcher(
        nproc_per_node=ranks,
        device="cpu" if is_cpu(machine.gpu(group.gpus[0])) else "cuda",
        threads_per_rank=None if cpus is None else max(1, cpus // ranks),
    )


def plans(
    job: Job, machine: Machine, group: Group, shape: Shape, sizes: Sequence[int], *, checkpointing: Checkpointing
) -> Iterator[Plan]:
    """Yield the shape's plans, one for each micro-batch of `sizes`."""
    gpus = island_order(machine, group.gpus) if shape.strategy == "hsdp" else group.gpus
    precision = plan_precision(job, machine, group, shape.strategy)
    launcher = launcher_of(machine, group)
    late = shape.strategy in ("fsdp", "hsdp") and not shape.sync_each_micro_batch
    for micro_batch in sizes:
        accumulation = job.global_batch // (group.ranks * micro_batch)
        if late and accumulation == 1:
            continue  # the same as reducing each time
        plan = Plan(
            gpus=gpus,
            nodes=group.nodes,
            strategy=shape.strategy,
            reshard_after_forward=shape.reshard_after_forward,
            shard_size=shape.shard_size,
            micro_batch=micro_batch,
            accumulation=accumulation,
            sync_each_micro_batch=shape.sync_each_micro_batch,
            global_batch=job.global_batch,
            precision=precision,
            activation_checkpointing=checkpointing,
            cpu_offload=shape.cpu_offload,
            launcher=launcher,
        )
        yield replace(plan, shard_from=shard_from(job, plan, machine))

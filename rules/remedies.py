"""What would make a job fit that does not, in the order of what it costs the user."""

from collections.abc import Iterator

from msgspec.structs import replace

from advisor.rules.cost import Costs
from advisor.rules.cpu_ranks import is_cpu
from advisor.rules.format import count, memory
from advisor.rules.job import Job, lora_params
from advisor.rules.machine import Gpu, Machine, Value
from advisor.rules.plan import Memory
from advisor.rules.strategies import Group, Shape, plans

LORA_RANK = 16
# What a host without a GPU is compared with: a common card to rent.
RENTED = Machine(gpus=(Gpu(id="GPU0", index=0, name="NVIDIA A100-SXM4-80GB", memory=81920 * 1024**2),))
MOST_GPUS = 4096


class Remedy(Value, frozen=True, kw_only=True):
    change: str  # what to do, in words
    option: str  # what to type; empty where it is hardware
    needed: int  # bytes per GPU then
    available: int
    fits: bool | None  # None where it hangs on host memory that is not known
    note: str = ""


def remedies(job: Job, machine: Machine) -> tuple[Remedy, ...]:
    """Price each change that could help, each alone, at one sample per rank with full checkpointing."""
    return tuple(_remedies(job, machine))


def _remedies(job: Job, machine: Machine) -> Iterator[Remedy]:
    if is_cpu(machine.gpus[0]):
        yield from _hardware(job, RENTED)
        return
    if job.trainable_params == job.params and job.optimizer == "adamw":
        yield _priced("8-bit AdamW", "--optimizer adamw-8bit", replace(job, optimizer="adamw-8bit"), machine)
    offload = smallest(job, machine, offload=True)
    host = machine.host.memory_available or machine.host.memory
    needed = offload.host * len(machine.gpus)
    on_gpu = offload.total <= offload.available
    known = "how much this host has is not known" if host is None else f"{memory(host)} there"
    yield Remedy(
        change="keep the states in host memory",
        option="--allow cpu-offload",
        needed=offload.total,
        available=offload.available,
        fits=None if host is None and on_gpu else on_gpu and needed <= (host or 0),
        note=f"needs {memory(needed)} of host memory, {known}; slow steps",
    )
    if job.trainable_params == job.params and job.architecture is not None:
        adapters = lora_params(job.architecture, LORA_RANK)
        lora = replace(job, trainable_params=adapters)
        yield _priced("train adapters only (LoRA)", f"--lora-rank {LORA_RANK}", lora, machine)
        qlora = replace(lora, quantize="nf4")
        yield _priced("adapters on a 4-bit base (QLoRA)", f"--lora-rank {LORA_RANK} --quantize nf4", qlora, machine)
    if job.seq >= 1024 and job.architecture is not None:
        yield _priced("half the sequence", f"--seq {job.seq // 2}", replace(job, seq=job.seq // 2), machine)
    yield from _hardware(job, machine)


def _hardware(job: Job, machine: Machine) -> Iterator[Remedy]:
    gpus = enough_gpus(job, machine)
    if gpus is None:
        return
    needs = smallest(job, machine, ranks=gpus)
    yield Remedy(
        change=f"{count(gpus)}x {machine.gpus[0].name or 'such GPUs'}, fully sharded",
        option="",
        needed=needs.total,
        available=needs.available,
        fits=True,
    )


def smallest(job: Job, machine: Machine, *, offload: bool = False, ranks: int | None = None) -> Memory:
    """Return the memory of the job's smallest plan on all GPUs: fully sharded, one sample, full checkpointing."""
    group = Group(tuple(gpu.id for gpu in machine.gpus), machine.nodes)
    shards = ranks or group.ranks
    shape = (
        Shape("fsdp", shards, cpu_offload=offload, sync_each_micro_batch=True)
        if shards > 1 or offload
        else Shape("single")
    )
    (plan,) = plans(replace(job, micro_batch=1), machine, group, shape, [1], checkpointing="full")
    return Costs(job, machine).memory(plan)


def enough_gpus(job: Job, machine: Machine) -> int | None:
    """Return the smallest power of two of such GPUs that holds the job fully sharded, None if 4096 do not."""
    gpus = 1
    while gpus <= MOST_GPUS:
        needed = smallest(job, machine, ranks=gpus)
        if needed.total <= needed.available:
            return gpus
        gpus *= 2
    return None


def _priced(change: str, option: str, job: Job, machine: Machine) -> Remedy:
    needed = smallest(job, machine)
    return Remedy(
        change=change,
        option=option,
        needed=needed.total,
        available=needed.available,
        fits=needed.total <= needed.available,
    )
